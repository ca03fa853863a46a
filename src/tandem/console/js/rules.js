// Rules of a subscription: changed here, and tried on a message before they are: which parts matched, which did not, and why.
import { html, useCallback, useEffect, useState } from "./lib.js";
import { can, call, post } from "./api.js";
import { Dialog, Field, Mistake, complain, confirm, say } from "./parts.js";

const KINDS = [
  { value: "sql", label: "SQL expression" },
  { value: "correlation", label: "Correlation (all must be equal)" },
  { value: "true", label: "Every message" },
  { value: "false", label: "No message" },
];
const SYSTEM = ["correlation_id", "message_id", "to", "reply_to", "label", "session_id", "reply_to_session_id", "content_type"];

export const filterText = (filter) => {
  if (filter.kind === "sql") return filter.expression;
  if (filter.kind !== "correlation") return filter.kind === "true" ? "every message" : "no message";
  const own = SYSTEM.filter((name) => filter[name] !== null && filter[name] !== undefined).map((name) => `${name} = '${filter[name]}'`);
  return [...own, ...(filter.properties ?? []).map(([name, , value]) => `${name} = ${JSON.stringify(value)}`)].join(" AND ") || "every message";
};

// "name = value", a line each: what JSON knows keeps its type, everything else is text.
function pairs(text) {
  const found = [];
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const cut = line.indexOf("=");
    if (cut < 1) throw new Mistake(`"${line}": write it like name = value`);
    found.push([line.slice(0, cut).trim(), value(line.slice(cut + 1).trim())]);
  }
  return found;
}

function value(text) {
  if (/^-?\d+$/.test(text) && Number.isSafeInteger(Number(text))) return Number(text);
  if (/^-?\d+\.\d+$/.test(text)) return Number(text);
  if (text === "true" || text === "false") return text === "true";
  return text.replace(/^'(.*)'$/, "$1").replace(/^"(.*)"$/, "$1");
}

const tagged = ([name, found]) => {
  if (typeof found === "boolean") return [name, "boolean", found];
  if (typeof found === "number") return Number.isInteger(found) ? [name, "int", String(found)] : null;
  return [name, "string", found];
};

export function asMessage(texts) {
  const message = { body: texts.body ?? "", properties: Object.fromEntries(pairs(texts.properties ?? "")) };
  for (const name of ["subject", "message_id", "correlation_id", "session_id", "to", "reply_to", "content_type"]) if (texts[name]) message[name] = texts[name];
  return message;
}

function Explanation({ results }) {
  return html`<div class="explanation" role="status">
    ${results.map((one) => html`<div data-matches=${one.matches} key=${one.rule}>
      <p><strong>${one.rule}</strong> ${one.failure ? html`fails: ${one.failure}` : one.matches ? "matches" : "does not match"}</p>
      <ul>${one.reasons.map((reason) => html`<li>${reason}</li>`)}
        ${one.changes.map((change) => html`<li>${change.value === null ? `removes ${change.scope}.${change.name}` : `sets ${change.scope}.${change.name} = ${change.value}`}</li>`)}</ul>
    </div>`)}
  </div>`;
}

function TestMessage({ texts, set }) {
  const change = (name) => (next) => set({ ...texts, [name]: next });
  return html`<fieldset><legend>Test message</legend>
    <${Field} label="Application properties" rows=${3} value=${texts.properties ?? ""} onInput=${change("properties")} hint="name = value, a line each" />
    <div class="grid"><${Field} label="Subject" value=${texts.subject ?? ""} onInput=${change("subject")} />
    <${Field} label="Correlation id" value=${texts.correlation_id ?? ""} onInput=${change("correlation_id")} />
    <${Field} label="Session id" value=${texts.session_id ?? ""} onInput=${change("session_id")} />
    <${Field} label="To" value=${texts.to ?? ""} onInput=${change("to")} /></div>
  </fieldset>`;
}

function RuleForm({ path, rule, onClose, onDone }) {
  const [name, setName] = useState(rule?.name ?? "");
  const [kind, setKind] = useState(rule?.filter.kind ?? "sql");
  const [expression, setExpression] = useState(rule?.filter.expression ?? "");
  const [correlation, setCorrelation] = useState(() =>
    rule?.filter.kind === "correlation"
      ? [...SYSTEM.filter((one) => rule.filter[one]).map((one) => `${one} = ${rule.filter[one]}`), ...rule.filter.properties.map(([key, , found]) => `${key} = ${found}`)].join("\n")
      : "",
  );
  const [action, setAction] = useState(rule?.action?.expression ?? "");
  const [test, setTest] = useState({});
  const [results, setResults] = useState(null);
  const [wrong, setWrong] = useState("");
  const build = () => {
    const filter = { kind };
    if (kind === "sql") filter.expression = expression;
    if (kind === "correlation") {
      const found = pairs(correlation);
      for (const [key, one] of found) if (SYSTEM.includes(key)) filter[key] = String(one);
      filter.properties = found.filter(([key]) => !SYSTEM.includes(key)).map(tagged);
      if (filter.properties.includes(null)) throw new Mistake("fractions cannot be compared for equality; use an SQL expression");
    }
    return { name: name || "test", filter, action: action.trim() ? { expression: action } : null };
  };
  const attempt = async (work) => {
    setWrong("");
    try {
      await work();
    } catch (error) {
      setResults(null);
      setWrong(error.short ?? error.message);
    }
  };
  const save = (event) => {
    event.preventDefault();
    attempt(async () => {
      await call("PUT", "rule", { path, rule: build(), create: !rule });
      say(`rule ${name} ${rule ? "changed" : "created"}`);
      onDone();
    });
  };
  const tryIt = () => attempt(async () => setResults((await post("rules/test", { path, rule: build(), message: asMessage(test) })).results));
  return html`<${Dialog} title=${rule ? `Change rule ${rule.name}` : "Create a rule"} onClose=${onClose} wide>
    <form onSubmit=${save}>
      <${Field} label="Rule name" value=${name} onInput=${setName} required disabled=${Boolean(rule)} />
      <${Field} label="Filter" value=${kind} onInput=${setKind} options=${KINDS} />
      ${kind === "sql" && html`<${Field} label="SQL expression" rows=${3} value=${expression} onInput=${setExpression} hint="total > 100 AND sys.Label = 'created'" />`}
      ${kind === "correlation" && html`<${Field} label="Equal to" rows=${3} value=${correlation} onInput=${setCorrelation} hint=${`name = value, a line each; ${SYSTEM.join(", ")} mean the message's own`} />`}
      <${Field} label="Action" rows=${2} value=${action} onInput=${setAction} hint="SET priority = 'high'; empty for none" />
      <${TestMessage} texts=${test} set=${setTest} />
      ${results && html`<${Explanation} results=${results} />`}
      ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
      <footer><button type="button" onClick=${tryIt}>Test</button><button type="button" onClick=${onClose}>Cancel</button>
        ${can("Manage", path) && html`<button class="primary">Save</button>`}</footer>
    </form>
  </${Dialog}>`;
}

export function Rules({ path }) {
  const [rules, set] = useState(null);
  const [editing, setEditing] = useState(null);
  const [test, setTest] = useState({});
  const [results, setResults] = useState(null);
  const read = useCallback(() => post("rules", { path }).then((found) => set(found.rules), complain), [path]);
  useEffect(() => {
    read();
  }, [path]);
  const remove = async (rule) => {
    if (!(await confirm(`Delete rule ${rule.name} of ${path}?`, "Delete"))) return;
    try {
      await call("DELETE", "rule", { path, name: rule.name });
      say(`rule ${rule.name} deleted`);
      read();
    } catch (error) {
      complain(error);
    }
  };
  const tryAll = async () => {
    try {
      setResults((await post("rules/test", { path, message: asMessage(test) })).results);
    } catch (error) {
      complain(error);
    }
  };
  if (!rules) return html`<p class="quiet">…</p>`;
  const manage = can("Manage", path);
  return html`<div>
    <table><caption class="hidden">Rules</caption><thead><tr><th>Rule</th><th>Filter</th><th>Action</th><th><span class="hidden">Change</span></th></tr></thead><tbody>
      ${rules.map((rule) => html`<tr key=${rule.name}><td>${rule.name}</td><td><code>${filterText(rule.filter)}</code></td><td><code>${rule.action?.expression ?? ""}</code></td>
        <td class="actions"><button onClick=${() => setEditing(rule)}>${manage ? "Edit" : "Look"}</button>${manage && html`<button class="danger" onClick=${() => remove(rule)}>Delete</button>`}</td></tr>`)}
    </tbody></table>
    ${manage && html`<p><button onClick=${() => setEditing({})}>Add a rule…</button></p>`}
    <details><summary>Which rules take a message?</summary>
      <${TestMessage} texts=${test} set=${setTest} />
      <button onClick=${tryAll}>Test all rules</button>
      ${results && html`<${Explanation} results=${results} />`}
    </details>
    ${editing && html`<${RuleForm} path=${path} rule=${editing.name ? editing : null} onClose=${() => setEditing(null)} onDone=${() => (setEditing(null), read())} />`}
  </div>`;
}
