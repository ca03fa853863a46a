// The messages of an entity or sub-queue: page by page, filtered, chosen, and what one does with them.
import { html, useCallback, useEffect, useRef, useState } from "./lib.js";
import { can, now, post } from "./api.js";
import { Field, RunState, complain, confirm, say, useRun } from "./parts.js";
import { count, instant, size } from "./format.js";
import { MessageView } from "./message_view.js";
import { Resubmit } from "./resubmit.js";
import { exportLines } from "./lines.js";

const PAGE = 50;
const CHUNK = 200;
const LARGE = 4194304; // as the broker has it
const STATES = [
  { value: "", label: "Any state" },
  { value: "active", label: "Active" },
  { value: "locked", label: "Locked" },
  { value: "scheduled", label: "Scheduled" },
  { value: "deferred", label: "Deferred" },
  { value: "leased", label: "Leased" },
];
const SUFFIX = { messages: "", "dead-letters": "/$DeadLetterQueue", "transfer-dead-letters": "/$Transfer/$DeadLetterQueue" };

// What the reader asks for: an SQL expression, a text, a session, a state. Empty ones are left out.
const asked = (filter) => Object.fromEntries(Object.entries(filter).filter(([, value]) => value));

function Filter({ filter, onChange, sessions }) {
  const [draft, set] = useState(filter);
  const change = (name) => (value) => set({ ...draft, [name]: value });
  const submit = (event) => {
    event.preventDefault();
    onChange(draft);
  };
  return html`<form class="bar filter" onSubmit=${submit}>
    <${Field} label="Contains" type="search" value=${draft.text ?? ""} onInput=${change("text")} />
    <${Field} label="SQL filter" value=${draft.where ?? ""} onInput=${change("where")} placeholder="n > 5 AND sys.Label = 'x'" />
    ${sessions && html`<${Field} label="Session" value=${draft.session ?? ""} onInput=${change("session")} />`}
    <${Field} label="State" value=${draft.state ?? ""} onInput=${change("state")} options=${STATES} />
    <button>Filter</button>
  </form>`;
}

function useMessages(path) {
  const [filter, setFilter] = useState({});
  const [starts, setStarts] = useState(["0"]); // where each page up to this one begins
  const [page, set] = useState(null);
  const asking = useRef();
  const start = starts[starts.length - 1];
  const read = useCallback(async () => {
    asking.current?.abort();
    const mine = (asking.current = new AbortController());
    let found = [];
    let at = start;
    let scanned = 0;
    let unread = 0;
    try {
      do {
        const told = await post("messages", { path, from: at, count: PAGE - found.length, ...asked(filter) }, mine.signal);
        found = [...found, ...told.messages];
        scanned += told.scanned;
        unread += told.unread;
        at = told.next;
        set({ messages: found, next: at, scanned, unread, searching: at !== null && found.length < PAGE });
      } while (at !== null && found.length < PAGE && !mine.signal.aborted);
    } catch (error) {
      if (error.name !== "AbortError") set({ messages: found, next: null, scanned, unread, wrong: error.short ?? error.message });
    }
  }, [path, start, filter]);
  useEffect(() => {
    read();
    return () => asking.current?.abort();
  }, [read]);
  return {
    page,
    filter,
    read,
    stop: () => {
      asking.current?.abort();
      set((before) => ({ ...before, searching: false }));
    },
    setFilter: (next) => (setFilter(next), setStarts(["0"])),
    goto: (seq) => setStarts((all) => [...all, seq]),
    next: () => setStarts((all) => [...all, page.next]),
    previous: () => setStarts((all) => (all.length > 1 ? all.slice(0, -1) : all)),
    first: () => setStarts(["0"]),
    number: starts.length,
  };
}

export function Messages({ entity, path: entityPath, tab, onChange }) {
  const path = entityPath + SUFFIX[tab];
  const list = useMessages(path);
  const { page, filter } = list;
  const [chosen, setChosen] = useState(() => new Set());
  const [open, setOpen] = useState(null);
  const [again, setAgain] = useState(null);
  const [run, start, stop, forget] = useRun();
  const [jump, setJump] = useState("");
  useEffect(() => setChosen(new Set()), [page?.messages[0]?.sequence_number, filter]);
  const refresh = () => {
    list.read();
    onChange();
  };
  const choose = (seq) => {
    const next = new Set(chosen);
    if (!next.delete(seq)) next.add(seq);
    setChosen(next);
  };
  const all = page?.messages.length > 0 && page.messages.every((one) => chosen.has(one.sequence_number));
  const some = chosen.size > 0;
  const total = { messages: entity.counts.active + entity.counts.scheduled + entity.counts.deferred + entity.counts.leased, "dead-letters": entity.counts.dead_letters, "transfer-dead-letters": entity.counts.transfer_dead_letters }[tab] ?? entity.counts.scheduled;
  const filtered = Object.values(filter).some(Boolean);
  const listen = can("Listen", entityPath);

  // Over those that are chosen, or all that the filter lets through: a few hundred with each step.
  const each = async (label, what, body) => {
    const numbers = [...chosen];
    let from = "0";
    const skipped = [];
    let unread = 0;
    try {
      const { done, stopped } = await start(label, some ? numbers.length : total, async () => {
        const part = some ? { sequence_numbers: numbers.splice(0, CHUNK) } : { from, count: CHUNK, before_ms: body.before_ms, ...asked(filter) };
        const told = await post(what, { path, ...body, ...part });
        skipped.push(...told.skipped);
        unread += told.unread;
        from = told.next;
        return { done: told.done, finished: some ? numbers.length === 0 : from === null };
      });
      if (unread) say(`${count(unread)} messages over ${size(LARGE)} were left as they are: a filter does not look into them`, "slow");
      if (skipped.length) say(`${skipped.length} were left as they are: ${skipped[0].reason}`, "slow");
      else if (!stopped) say(`${label}: ${count(done)} done`);
    } catch (error) {
      complain(error);
    }
    refresh();
  };
  const remove = async () => {
    if (!(await confirm(`Remove ${some ? count(chosen.size) : "all matching"} messages of ${path} for good?`, "Remove"))) return;
    await each("Removing", "messages/remove", { before_ms: Math.round(now()) });
  };
  const deadLetter = () => each("Dead-lettering", "messages/dead-letter", { reason: "Operator", description: "dead-lettered in the console" });
  const purge = async () => {
    if (!(await confirm(`Drop all active messages of ${path}? Scheduled, deferred and locked ones stay.`, "Purge"))) return;
    let before;
    try {
      const { done } = await start("Purging", total, async () => {
        const told = await post("messages/purge", { path, before_ms: before, session: filter.session || undefined });
        before = told.before_ms;
        return told;
      });
      say(`Purged ${count(done)} messages`);
    } catch (error) {
      complain(error);
    }
    refresh();
  };
  const resubmit = async ({ to, changes }) => {
    setAgain(null);
    await each("Sending again", "messages/resubmit", { to, changes, before_ms: Math.round(now()) });
  };
  const dead = tab !== "messages";
  return html`<div class="messages">
    <${Filter} filter=${filter} onChange=${list.setFilter} sessions=${entity.description.requires_session && !dead} />
    <div class="bar actions-bar" role="toolbar" aria-label="What to do with them">
      <span class="quiet">${some ? `${chosen.size} chosen` : filtered ? "all that match" : `all ${count(total)}`}</span>
      <button onClick=${() => setAgain({})} disabled=${!page?.messages.length || (!dead && !some)}>${dead ? "Resubmit…" : "Send again…"}</button>
      <button onClick=${remove} disabled=${!some && !filtered}>Remove…</button>
      ${!dead && entity.kind !== "topic" && html`<button onClick=${deadLetter} disabled=${!some}>Dead-letter</button>`}
      <button onClick=${() => exportLines(path, asked(filter), [...chosen], total, start).catch(complain)} disabled=${!page?.messages.length}>Export</button>
      ${listen && html`<button class="danger" onClick=${purge} disabled=${!total}>Purge…</button>`}
      <button onClick=${refresh}>Refresh</button>
    </div>
    <${RunState} state=${run} stop=${stop} forget=${forget} />
    ${page?.wrong && html`<p class="wrong" role="alert">${page.wrong}</p>`}
    ${!page ? html`<p class="quiet">…</p>` : html`
    <div class="table" tabindex="0" role="region" aria-label="Messages"><table>
      <thead><tr><th><input type="checkbox" aria-label="Choose all on this page" checked=${all} onChange=${() => setChosen(all ? new Set() : new Set(page.messages.map((one) => one.sequence_number)))} /></th>
        <th>Sequence number</th><th>Enqueued</th><th>State</th><th>Message id</th>${dead && html`<th>Reason</th>`}<th>Body</th><th class="number">Size</th></tr></thead>
      <tbody>${page.messages.map((one) => html`<tr key=${one.sequence_number}>
        <td><input type="checkbox" aria-label="Choose ${one.sequence_number}" checked=${chosen.has(one.sequence_number)} onChange=${() => choose(one.sequence_number)} /></td>
        <td><button class="plain link" onClick=${() => setOpen(one.sequence_number)}>${one.sequence_number}</button></td>
        <td class="nowrap">${instant(one.enqueued_time_utc)}</td>
        <td class="nowrap">${one.state}${one.scheduled_enqueue_time_utc ? html`<br /><small>${instant(one.scheduled_enqueue_time_utc)}</small>` : ""}</td>
        <td>${one.message_id}${one.session_id ? html`<br /><small>session ${one.session_id}</small>` : ""}</td>
        ${dead && html`<td>${one.dead_letter_reason}<br /><small>${one.dead_letter_error_description}</small></td>`}
        <td class="preview">${one.large ? html`<em>large: open it to look</em>` : one.preview}</td><td class="number nowrap">${size(one.size_bytes)}</td></tr>`)}</tbody>
    </table></div>
    ${!page.messages.length && !page.searching && html`<p class="quiet">${filtered ? "No message fits." : "There are no messages."}</p>`}
    ${page.unread > 0 && html`<p class="quiet unread" role="status">${count(page.unread)} messages over ${size(LARGE)} are not shown: a filter does not look into them.</p>`}
    <div class="bar pager">
      ${page.searching && html`<span role="status">searched ${count(page.scanned)}… <button onClick=${list.stop}>Stop</button></span>`}
      <button onClick=${list.first} disabled=${list.number === 1}>First</button>
      <button onClick=${list.previous} disabled=${list.number === 1}>Previous</button>
      <span class="quiet">Page ${list.number}</span>
      <button onClick=${list.next} disabled=${page.next === null || page.messages.length < PAGE}>Next</button>
      <form onSubmit=${(event) => (event.preventDefault(), /^\d+$/.test(jump) && list.goto(jump))}><${Field} label="From sequence number" value=${jump} onInput=${setJump} inputmode="numeric" /></form>
    </div>`}
    ${open && html`<${MessageView} path=${path} home=${entityPath} seq=${open} onClose=${() => setOpen(null)} onChange=${refresh} onResubmit=${(message) => (setOpen(null), setChosen(new Set([message.sequence_number])), setAgain(message))} />`}
    ${again && html`<${Resubmit} path=${path} entity=${entityPath} message=${again.sequence_number ? again : null} number=${some ? chosen.size : total} filtered=${!some && filtered}
      onClose=${() => setAgain(null)} onDone=${resubmit} />`}
  </div>`;
}

export const MESSAGE_PAGES = [
  { name: "messages", label: () => "Messages", fits: (entity) => entity.kind !== "relay" && can("Listen", entity.path), page: Messages },
  { name: "dead-letters", label: (entity) => `Dead letters (${count(entity.counts.dead_letters)})`, fits: (entity) => ["queue", "subscription"].includes(entity.kind), page: Messages },
  { name: "transfer-dead-letters", label: (entity) => `Transfer dead letters (${count(entity.counts.transfer_dead_letters)})`, fits: (entity) => ["queue", "subscription"].includes(entity.kind), page: Messages },
];
