// An outage from inside: paths of paired clients as they report them, backlog queues, how far the syphon is, and what happened when.
import { html, useCallback, useEffect, useMemo, useState } from "./lib.js";
import { call, now, post } from "./api.js";
import { Chart } from "./charts.js";
import { Timeline } from "./overview.js";
import { Mistake, RunState, complain, say, useRun } from "./parts.js";
import { count, instant, rate, span } from "./format.js";

const STATES = { "path-suspect": "suspect", "path-failed-over": "failed over", "path-poisoned": "poisoned", "path-healthy": "healthy" };
const FILE_BYTES = 50000000;

// An event log that somebody opened: its lines never leave this browser.
export function readLog(text) {
  const events = [];
  const paths = new Map();
  let number = 0;
  for (const line of text.split("\n")) {
    number += 1;
    if (!line.trim()) continue;
    let event;
    try {
      event = JSON.parse(line);
    } catch (error) {
      throw new Mistake(`line ${number}: ${error.message}`);
    }
    if (typeof event?.kind !== "string" || typeof event.at_ms !== "number") throw new Mistake(`line ${number} is not a line of an event log`);
    const key = `${event.who}\n${event.path}`;
    if (event.path && !paths.has(key)) paths.set(key, { who: event.who ?? "", path: event.path, state: "healthy", since_ms: event.at_ms, failed_pings: 0, detail: "" });
    const path = paths.get(key);
    if (path && STATES[event.kind]) Object.assign(path, { state: STATES[event.kind], since_ms: event.at_ms, detail: event.detail ?? "", ...(event.kind === "path-healthy" ? { failed_pings: 0 } : {}) });
    if (path && event.kind === "ping-failed") path.failed_pings += 1;
    if (path && event.kind === "counters") Object.assign(path, { attempted: event.attempted, diverted: event.diverted, failed: event.failed });
    if (event.kind !== "counters") events.push({ number, who: event.who ?? "", at_ms: event.at_ms, kind: event.kind, path: String(event.path ?? ""), detail: String(event.detail ?? "") });
  }
  return { events, paths: [...paths.values()] };
}

function Paths({ paths }) {
  if (!paths.length) return html`<p class="quiet">No client has reported. A pair does with <code>on_event=EventReport(connection_string)</code>; or open an event log below.</p>`;
  return html`<div class="table" tabindex="0" role="region" aria-label="Paths"><table>
    <thead><tr><th>Client</th><th>Path</th><th>State</th><th>Since</th><th class="number">Failed pings</th><th class="number">Attempted</th><th class="number">Diverted</th><th class="number">Failed</th><th>Why</th></tr></thead>
    <tbody>${paths.map((one) => html`<tr key=${one.who + one.path}><td>${one.who}</td><td>${one.path}</td><td class="nowrap"><span class="state" data-state=${one.state}>${one.state}</span></td>
      <td class="nowrap">${instant(one.since_ms)}<br /><small>${span(now() - one.since_ms)}</small></td><td class="number">${count(one.failed_pings)}</td><td class="number">${count(one.attempted)}</td><td class="number">${count(one.diverted)}</td><td class="number">${count(one.failed)}</td><td>${one.detail}</td></tr>`)}</tbody>
  </table></div>`;
}

// From the samples of the last two minutes: how fast the backlog shrinks, and so when it will be empty.
export function syphon(history) {
  const column = history?.backlog ?? [];
  const length = Math.min(120, column.length);
  if (length < 3) return null;
  const depth = column[column.length - 1];
  const most = Math.max(...column.slice(-length));
  if (!most) return null;
  const from = column.length - length + column.slice(-length).lastIndexOf(most);
  const seconds = (history.at_ms[column.length - 1] - history.at_ms[from]) / 1000;
  const perSecond = seconds > 0 ? (most - depth) / seconds : 0;
  return { depth, moved: most - depth, most, perSecond, left_ms: depth === 0 ? 0 : perSecond > 0 ? (depth / perSecond) * 1000 : null };
}

function Syphon({ history }) {
  const found = syphon(history);
  if (!found) return html`<p class="quiet">The backlog of this namespace is empty.</p>`;
  const words = found.depth === 0 ? "empty" : found.left_ms === null ? "nobody carries it home at the moment" : `${span(found.left_ms)} left at ${rate(found.perSecond)} per second`;
  return html`<div class="syphon"><p><strong>${count(found.depth)}</strong> messages in the backlog: ${words}</p>
    <progress max=${found.most} value=${found.most - found.depth} aria-label="Carried home of the last ${count(found.most)}"></progress></div>`;
}

function Backlog({ queues }) {
  const [destinations, set] = useState(null);
  const [run, start, stop, forget] = useRun();
  const total = queues.reduce((sum, one) => sum + one.messages, 0);
  const look = async () => {
    const found = new Map();
    const left = queues.filter((one) => one.messages).map((one) => one.path);
    let from = "0";
    try {
      await start("Looking into the backlog", total, async () => {
        if (!left.length) return { done: 0, finished: true };
        const told = await post("outage/destinations", { path: left[0], from });
        let done = 0;
        for (const [path, one] of Object.entries(told.destinations)) {
          const known = found.get(path) ?? { messages: 0, oldest_ms: 0 };
          found.set(path, { messages: known.messages + one.messages, oldest_ms: Math.max(known.oldest_ms, one.oldest_ms) });
          done += one.messages;
        }
        from = told.next ?? "0";
        if (told.next === null) left.shift();
        set([...found.entries()].sort((a, b) => b[1].messages - a[1].messages));
        return { done, finished: !left.length };
      });
    } catch (error) {
      complain(error);
    }
  };
  if (!queues.length) return html`<p class="quiet">This namespace has no backlog queues: it is nobody's secondary.</p>`;
  return html`<div>
    <div class="table" tabindex="0" role="region" aria-label="Backlog queues"><table>
      <thead><tr><th>Backlog queue</th><th>For</th><th class="number">Messages</th><th class="number">Oldest</th><th class="number">Dead letters</th><th class="number">Receivers</th></tr></thead>
      <tbody>${queues.map((one) => html`<tr key=${one.path}><td><a href="#/entity/${encodeURIComponent(one.path)}/messages">${one.path}</a></td><td>${one.primary}</td><td class="number">${count(one.messages)}</td>
        <td class="number">${one.oldest_ms === null ? "–" : span(one.oldest_ms)}</td><td class="number" data-name="dead_letters" data-some=${one.dead_letters > 0}>${count(one.dead_letters)}</td><td class="number">${count(one.receivers)}</td></tr>`)}</tbody>
    </table></div>
    <p><button onClick=${look} disabled=${!total}>Count by destination</button></p>
    <${RunState} state=${run} stop=${stop} forget=${forget} />
    ${destinations && html`<div class="table" tabindex="0" role="region" aria-label="Destinations"><table>
      <thead><tr><th>Destination</th><th class="number">Messages</th><th class="number">Oldest</th></tr></thead>
      <tbody>${destinations.map(([path, one]) => html`<tr key=${path}><td>${path}</td><td class="number">${count(one.messages)}</td><td class="number">${span(one.oldest_ms)}</td></tr>`)}</tbody>
    </table></div>`}
  </div>`;
}

export function Outage({ state, history, beat }) {
  const [told, set] = useState(null);
  const [file, setFile] = useState(null);
  const read = useCallback(() => call("GET", "outage").then(set, (error) => error.status && complain(error)), []);
  useEffect(() => {
    read();
  }, [Math.floor(beat / 2)]);
  const open = async (event) => {
    const [chosen] = event.target.files;
    event.target.value = "";
    if (!chosen) return;
    try {
      if (chosen.size > FILE_BYTES) throw new Mistake(`${chosen.name} has more than ${FILE_BYTES / 1e6} MB`);
      setFile({ name: chosen.name, ...readLog(await chosen.text()) });
      say(`${chosen.name} read`);
    } catch (error) {
      complain(error);
    }
  };
  const report = async () => {
    try {
      const { address } = await post("report", {});
      window.open(address, "_blank", "noopener");
    } catch (error) {
      complain(error);
    }
  };
  const at = useMemo(() => history?.at_ms.map((ms) => ms / 1000) ?? [], [history]);
  if (!told) return html`<p class="quiet">…</p>`;
  const reported = told.reporters.flatMap((one) => one.paths.map((path) => ({ who: one.who, ...path })));
  const paths = [...reported, ...(file?.paths ?? [])];
  const events = [...told.events, ...(file?.events ?? []), ...(state?.events ?? [])].sort((a, b) => b.at_ms - a.at_ms).slice(0, 300);
  return html`<section aria-labelledby="outage-title">
    <div class="bar"><h1 id="outage-title">Outage</h1>
      ${told.report ? html`<button onClick=${report}>Open the report</button>` : html`<span class="quiet">No report yet: <code>tandem report --out …/report.html</code> into the data directory</span>`}</div>
    <h2>Paths</h2>
    <${Paths} paths=${paths} />
    <p><label>Open an event log <input type="file" accept=".jsonl,.json,.txt" onChange=${open} /></label> ${file && html`<span class="quiet">${file.name}: ${count(file.events.length)} events</span>`}</p>
    <h2>Syphon</h2>
    <${Syphon} history=${history} />
    ${history && html`<${Chart} title="Backlog" round="whole" format=${count} data=${[at, history.backlog]} series=${[{ label: "messages", colour: "--bad" }]} />`}
    <h2>Backlog queues</h2>
    <${Backlog} queues=${told.backlog} />
    <h2>What happened</h2>
    <${Timeline} events=${events} />
  </section>`;
}
