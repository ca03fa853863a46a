// Faults on purpose, on a broker that allows them: stores, entities and connections made to fail, and healed with a click.
import { html, useCallback, useEffect, useState } from "./lib.js";
import { call, page } from "./api.js";
import { Field, complain, say } from "./parts.js";
import { count, milliseconds, span } from "./format.js";
import { Stores } from "./overview.js";

const WORDS = { store: "A store", entity: "An entity", connections: "Connections" };

function Inject({ concerns, kinds, stores, onDone }) {
  const [kind, setKind] = useState(kinds[0].kind);
  const [store, setStore] = useState("0");
  const [entity, setEntity] = useState("");
  const [delay, setDelay] = useState("500ms");
  const [last, setLast] = useState("");
  const [wrong, setWrong] = useState("");
  const known = kinds.find((one) => one.kind === kind);
  const submit = async (event) => {
    event.preventDefault();
    setWrong("");
    try {
      const body = { kind };
      if (concerns === "store") body.store = Number(store);
      if (concerns === "entity" && entity.trim()) body.entity = entity.trim();
      if (known.delay) body.delay_ms = milliseconds(delay);
      if (last.trim()) body.for_ms = milliseconds(last);
      await page("POST", "faults", body);
      say(`${kind} injected`, "slow");
      onDone();
    } catch (error) {
      setWrong(error.short ?? error.message);
    }
  };
  return html`<form class="card" onSubmit=${submit} aria-label="${WORDS[concerns]} fails">
    <h2>${WORDS[concerns]}</h2>
    <${Field} label="Fault of ${concerns === "connections" ? "connections" : `the ${concerns}`}" value=${kind} onInput=${setKind} options=${kinds.map((one) => one.kind)} />
    ${concerns === "store" && html`<${Field} label="Store" value=${store} onInput=${setStore} options=${Array.from({ length: stores }, (_, one) => ({ value: String(one), label: `store-${one}` }))} />`}
    ${concerns === "entity" && html`<${Field} label="Entity" value=${entity} onInput=${setEntity} hint="Empty: every entity" />`}
    ${known.delay && html`<${Field} label="Delay" value=${delay} onInput=${setDelay} />`}
    ${!known.once && html`<${Field} label="For (${concerns})" value=${last} onInput=${setLast} hint="30s, 5m; empty: until healed" />`}
    ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
    <button class="danger">Make it fail</button>
  </form>`;
}

export function Faults({ state, beat }) {
  const [told, set] = useState(null);
  const read = useCallback(() => call("GET", "faults").then(set, (error) => error.status && complain(error)), []);
  useEffect(() => {
    read();
  }, [Math.floor(beat / 2)]);
  const heal = async (id) => {
    try {
      const found = await page("DELETE", id === null ? "faults" : `faults/${id}`);
      say(`${found.healed.length} healed`);
      read();
    } catch (error) {
      complain(error);
    }
  };
  if (!told) return html`<p class="quiet">…</p>`;
  return html`<section aria-labelledby="faults-title">
    <div class="bar"><h1 id="faults-title">Faults</h1><button disabled=${!told.active.length} onClick=${() => heal(null)}>Heal everything</button></div>
    ${state && html`<${Stores} stores=${state.stores} />`}
    ${told.active.length
      ? html`<div key="active" class="table" tabindex="0" role="region" aria-label="Faults in force"><table>
          <thead><tr><th>Fault</th><th>Of</th><th>Ends</th><th class="number">Struck</th><th><span class="hidden">Heal</span></th></tr></thead>
          <tbody>${told.active.map((one) => html`<tr key=${one.id}><td>${one.kind}</td><td>${one.store !== null ? `store-${one.store}` : (one.entity ?? "everything")}</td><td>${one.until_ms ? new Date(one.until_ms).toISOString() : "when healed"}${one.delay_ms ? `, ${span(one.delay_ms)} late` : ""}</td>
            <td class="number">${count(one.struck)}</td><td class="actions"><button onClick=${() => heal(one.id)} aria-label="Heal ${one.kind}">Heal</button></td></tr>`)}</tbody></table></div>`
      : html`<p class="quiet">Nothing fails on purpose.</p>`}
    <div class="cards" key="cards">${["store", "entity", "connections"].map((concerns) => html`<${Inject} key=${concerns} concerns=${concerns} kinds=${told.kinds.filter((one) => one.concerns === concerns)} stores=${told.stores} onDone=${read} />`)}</div>
  </section>`;
}
