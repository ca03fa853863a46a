// Sending messages again, one or thousands: where to, and with which changes. Each is completed only after its copy is on disk.
import { html, useState } from "./lib.js";
import { Dialog, Field } from "./parts.js";
import { count } from "./format.js";
import { bytesOf } from "./body.js";

const TEXTS = [
  ["message_id", "Message id"],
  ["subject", "Subject"],
  ["session_id", "Session id"],
  ["correlation_id", "Correlation id"],
  ["content_type", "Content type"],
  ["to", "To"],
  ["reply_to", "Reply to"],
];
const PLAIN = new Set(["string", "bool", "int", "uint", "long", "ulong", "byte", "ubyte", "short", "ushort", "float", "double"]);
const OF_DEAD_LETTERS = ["DeadLetterReason", "DeadLetterErrorDescription"];

const text = (base64) => {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytesOf(base64));
  } catch {
    return null;
  }
};

export const homeOf = (path) => path.replace(/\/Subscriptions\/[^/]+$/i, "");

export function Resubmit({ path, entity, message, number, filtered, onClose, onDone }) {
  const [to, setTo] = useState(homeOf(entity));
  const before = message ? text(message.body_base64) : null;
  const editable = message && before !== null && message.body_kind === "data" && message.body_bytes <= 262144;
  const [body, setBody] = useState(before ?? "");
  const plain = message ? Object.fromEntries(message.properties.filter((one) => PLAIN.has(one.type) && !OF_DEAD_LETTERS.includes(one.name)).map((one) => [one.name, one.value])) : {};
  const [properties, setProperties] = useState(message ? JSON.stringify(plain, null, 2) : "");
  const [texts, setTexts] = useState({});
  const [wrong, setWrong] = useState("");
  const submit = (event) => {
    event.preventDefault();
    const changes = { ...texts };
    try {
      if (editable && body !== before) changes.body = body;
      if (properties.trim() && (!message || properties !== JSON.stringify(plain, null, 2))) {
        const wanted = JSON.parse(properties);
        if (typeof wanted !== "object" || wanted === null || Array.isArray(wanted)) throw new Error("an object is needed");
        changes.properties = { ...wanted };
        if (message) for (const name of Object.keys(plain)) if (!(name in wanted)) changes.properties[name] = null;
      }
    } catch (error) {
      setWrong(`Application properties: ${error.message}`);
      return;
    }
    onDone({ to, changes });
  };
  return html`<${Dialog} title=${message ? `Edit and resubmit message ${message.sequence_number}` : `Resubmit ${count(number)} messages`} onClose=${onClose} wide=${Boolean(message)}>
    <form onSubmit=${submit}>
      <p>${message ? "The message is" : filtered ? "All that the filter lets through are" : `${count(number)} messages of ${path} are`} sent again under ${message ? "its" : "their"} message id, so that duplicate detection
        catches a repeat, and removed from here only after the copy is on disk. It may be stopped and started again.</p>
      <${Field} label="Send to" value=${to} onInput=${setTo} required />
      ${message && editable && html`<${Field} label="Body" rows=${8} value=${body} onInput=${setBody} />`}
      ${message && !editable && html`<p class="quiet">The body is not text, or too long to be edited; it stays as it is, to the byte.</p>`}
      <${Field} label="Application properties" rows=${message ? 6 : 3} value=${properties} onInput=${setProperties} hint=${message ? "JSON; what is taken out is removed" : 'JSON of those to set, null removes: {"retried": true}'} />
      ${message && html`<div class="grid">${TEXTS.map(([name, label]) => html`<${Field} key=${name} label=${label} value=${texts[name] ?? message[name] ?? ""} onInput=${(value) => setTexts({ ...texts, [name]: value })} />`)}</div>`}
      ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
      <footer><button type="button" onClick=${onClose}>Cancel</button><button class="primary">Send again</button></footer>
    </form>
  </${Dialog}>`;
}
