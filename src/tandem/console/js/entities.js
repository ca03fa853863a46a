// The tree of queues, topics, subscriptions, rules and relays with their counts; thousands of them, a window at a time.
import { html, useCallback, useState } from "./lib.js";
import { can, post } from "./api.js";
import { Field, VirtualList } from "./parts.js";
import { count } from "./format.js";
import { EntityForm } from "./entity_form.js";

const COLUMNS = [
  ["active", "Active"],
  ["dead_letters", "Dead"],
  ["scheduled", "Sched."],
  ["deferred", "Deferred"],
  ["locked", "Locked"],
  ["leased", "Leased"],
  ["transfer_dead_letters", "Transfer dead"],
];
const SHOW = [
  { value: "all", label: "Everything" },
  { value: "queues", label: "Queues" },
  { value: "topics", label: "Topics" },
  { value: "relays", label: "Relays" },
  { value: "messages", label: "With messages" },
  { value: "dead-letters", label: "With dead letters" },
];

export const hrefOf = (row) => {
  if (row.kind === "rule") {
    const cut = row.path.lastIndexOf("/Rules/");
    return `#/entity/${encodeURIComponent(row.path.slice(0, cut))}/rules`;
  }
  return `#/entity/${encodeURIComponent(row.path)}`;
};

export function Entities({ beat }) {
  const [search, setSearch] = useState("");
  const [show, setShow] = useState("all");
  const [open, setOpen] = useState(() => new Set());
  const [creating, setCreating] = useState(false);
  const [changes, setChanges] = useState(0);
  const load = useCallback(
    (skip, top) => post("entities", { skip, top, search, show, open: [...open] }),
    [search, show, open],
  );
  const turn = (row) => {
    const next = new Set(open);
    if (!next.delete(row.path)) next.add(row.path);
    setOpen(next);
  };
  const cells = (row) => html`
    <span role="gridcell" class="name" style=${{ paddingLeft: `${row.level * 1.4}rem` }}>
      ${row.children !== undefined
        ? html`<button class="plain twist" aria-expanded=${row.open} aria-label="${row.open ? "Close" : "Open"} ${row.name}" onClick=${() => turn(row)}>${row.open ? "▾" : "▸"}</button>`
        : html`<i class="twist"></i>`}
      <span class="kind" data-kind=${row.kind}>${row.kind}</span>
      <a href=${hrefOf(row)}>${row.name}</a>
      ${row.status && row.status !== "Active" && html`<span class="badge">${row.status}</span>`}
      ${row.counts?.incomplete && html`<span class="badge">store down</span>`}
    </span>
    ${row.kind === "relay"
      ? html`<span role="gridcell" class="number wide">${count(row.counts.listeners)} listeners, ${count(row.counts.connections)} connections</span>`
      : COLUMNS.map(
          ([name]) => html`<span role="gridcell" class="number" data-name=${name} data-some=${Boolean(row.counts?.[name])}>${count(row.counts?.[name])}</span>`,
        )}
  `;
  const key = (event, row) => {
    if (event.key === "Enter") location.hash = hrefOf(row);
    else if ((event.key === "ArrowRight" && row.children !== undefined && !row.open) || (event.key === "ArrowLeft" && row.open)) turn(row);
    else return false;
    return true;
  };
  return html`<section aria-labelledby="entities-title" class="full">
    <div class="bar">
      <h1 id="entities-title">Entities</h1>
      <${Field} label="Search" type="search" value=${search} onInput=${setSearch} />
      <${Field} label="Show" value=${show} onInput=${setShow} options=${SHOW} />
      ${can("Manage") && html`<button class="primary" onClick=${() => setCreating(true)}>Create…</button>`}
    </div>
    <${VirtualList} label="Entities" load=${load} version=${`${Math.floor(beat / 2)}:${changes}`} renderRow=${cells} onKey=${key}
      empty=${search || show !== "all" ? "Nothing fits." : "There are no entities yet."}
      header=${html`<span role="columnheader" class="name">Name</span>${COLUMNS.map(([name, label]) => html`<span role="columnheader" class="number" data-name=${name}>${label}</span>`)}`} />
    ${creating && html`<${EntityForm} create onClose=${() => setCreating(false)} onDone=${() => (setCreating(false), setChanges(changes + 1))} />`}
  </section>`;
}
