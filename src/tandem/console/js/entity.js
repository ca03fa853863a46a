// One entity: its counts, its settings, and doors to its messages, sessions and rules.
import { html, useCallback, useEffect, useState } from "./lib.js";
import { can, call, post } from "./api.js";
import { Tabs, complain, confirm, say } from "./parts.js";
import { count, size, spanText } from "./format.js";
import { EntityForm, FIELDS } from "./entity_form.js";
import { Rules } from "./rules.js";

const LABELS = {
  active: "Active",
  locked: "Locked",
  scheduled: "Scheduled",
  deferred: "Deferred",
  leased: "Leased",
  dead_letters: "Dead letters",
  transfer_dead_letters: "Transfer dead letters",
  listeners: "Listeners",
  connections: "Connections",
};

function Settings({ entity }) {
  const value = (field) => {
    const found = entity.description[field.name];
    if (found === null || found === undefined || found === "") return "–";
    return field.kind === "span" ? spanText(found) : field.kind === "flag" ? (found ? "yes" : "no") : String(found);
  };
  return html`<dl class="settings">
    ${FIELDS[entity.kind].map((field) => html`<div key=${field.name}><dt>${field.label}</dt><dd>${value(field)}</dd></div>`)}
    ${entity.fragments > 1 && html`<div><dt>Fragments</dt><dd>${entity.fragments}</dd></div>`}
    ${entity.consumers !== undefined && html`<div><dt>Receivers</dt><dd>${entity.consumers}</dd></div>`}
  </dl>`;
}

export function EntityPage({ path, tab = "settings", beat, pages }) {
  const [entity, set] = useState(null);
  const [gone, setGone] = useState("");
  const [editing, setEditing] = useState(false);
  const [adding, setAdding] = useState(false);
  const read = useCallback(async () => {
    try {
      set(await post("entity", { path }));
      setGone("");
    } catch (error) {
      if (error.status === 404 || error.status === 401) setGone(error.short);
      else if (error.status) complain(error);
    }
  }, [path]);
  useEffect(() => {
    set(null);
  }, [path]);
  useEffect(() => {
    read();
  }, [path, Math.floor(beat / 2)]);
  if (gone) return html`<section><h1>${path}</h1><p class="wrong" role="alert">${gone}</p><p><a href="#/entities">Back to all entities</a></p></section>`;
  if (!entity) return html`<p class="quiet">…</p>`;
  const status = async (next) => {
    try {
      await call("PUT", "entity", { kind: entity.kind, path, description: { status: next } });
      say(`${path} is ${next === "Active" ? "enabled" : "disabled"}`);
      read();
    } catch (error) {
      complain(error);
    }
  };
  const remove = async () => {
    if (!(await confirm(`Delete ${entity.kind} ${path} with everything in it?`, "Delete"))) return;
    try {
      await call("DELETE", "entity", { path });
      say(`${path} deleted`);
      location.hash = "#/entities";
    } catch (error) {
      complain(error);
    }
  };
  const manage = can("Manage", path);
  const tabs = [{ name: "settings", label: "Settings" }];
  if (entity.kind === "subscription") tabs.push({ name: "rules", label: "Rules" });
  for (const one of pages) if (one.fits(entity)) tabs.push({ name: one.name, label: one.label(entity) });
  const Page = pages.find((one) => one.name === tab)?.page;
  const base = `#/entity/${encodeURIComponent(path)}`;
  return html`<section aria-labelledby="entity-title">
    <p class="crumbs"><a href="#/entities">Entities</a> / ${entity.kind}</p>
    <div class="bar">
      <h1 id="entity-title">${path}</h1>
      ${entity.status && html`<span class="badge" data-status=${entity.status}>${entity.status}</span>`}
      ${manage && html`<button onClick=${() => setEditing(true)}>Edit…</button>`}
      ${manage && entity.kind !== "relay" && (entity.status === "Active"
        ? html`<button onClick=${() => status("Disabled")}>Disable</button>`
        : html`<button onClick=${() => status("Active")}>Enable</button>`)}
      ${manage && entity.kind === "topic" && html`<button onClick=${() => setAdding(true)}>Add a subscription…</button>`}
      ${manage && html`<button class="danger" onClick=${remove}>Delete…</button>`}
    </div>
    <dl class="figures small">
      ${Object.entries(LABELS).filter(([name]) => entity.counts?.[name] !== undefined)
        .map(([name, label]) => html`<div class="figure" data-name=${name} key=${name}><dt>${label}</dt><dd>${count(entity.counts[name])}</dd></div>`)}
      ${entity.counts?.size_bytes !== undefined && html`<div class="figure"><dt>Size</dt><dd>${size(entity.counts.size_bytes)}</dd></div>`}
    </dl>
    <${Tabs} label="Of this entity" tabs=${tabs} current=${tab} hrefOf=${(name) => `${base}/${name}`} />
    ${tab === "settings" && html`<${Settings} entity=${entity} />`}
    ${tab === "rules" && html`<${Rules} path=${path} />`}
    ${Page && tabs.some((one) => one.name === tab) && html`<${Page} entity=${entity} path=${path} tab=${tab} key=${path + tab} onChange=${read} />`}
    ${editing && html`<${EntityForm} entity=${entity} onClose=${() => setEditing(false)} onDone=${() => (setEditing(false), read())} />`}
    ${adding && html`<${EntityForm} create topic=${path} onClose=${() => setAdding(false)} onDone=${() => (setAdding(false), read())} />`}
  </section>`;
}
