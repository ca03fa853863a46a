// How the namespace is: rates, depths, stores and alarms now, and the last hour of them.
import { html } from "./lib.js";
import { session } from "./api.js";
import { Chart } from "./charts.js";
import { count, instant, rate, size, span } from "./format.js";

function Figure({ label, value, level }) {
  return html`<div class="figure" data-level=${level}><dt>${label}</dt><dd>${value}</dd></div>`;
}

export function Stores({ stores }) {
  return html`<ul class="stores" aria-label="Stores">
    ${stores.map(
      (store) => html`<li data-state=${store.state} key=${store.name}><strong>${store.name}</strong> ${store.state}
        ${[store.cause, ...store.notes].filter(Boolean).map((line) => html`<small>${line}</small>`)}</li>`,
    )}
  </ul>`;
}

function Workers({ workers }) {
  const word = session.cluster ? "Node" : "Worker";
  return html`<h2>${word}s</h2>
    <div class="table" tabindex="0" role="region" aria-label="${word}s"><table>
      <thead><tr><th>${word}</th><th>Stores</th><th class="number nowrap">In per second</th><th class="number nowrap">Out per second</th><th class="number nowrap">Active</th><th class="number nowrap">Connections</th>
        <th class="number">Memory</th><th class="number">Loop lag</th></tr></thead>
      <tbody>${workers.map((one) => html`<tr key=${one.name}><td class="nowrap"><strong>${one.name}</strong></td>
        ${one.answers
          ? html`<td class="stores-had">${one.stores.map((number) => `store-${number}`).join(", ") || "none"}</td><td class="number">${rate(one.sent_per_second)}</td><td class="number">${rate(one.received_per_second)}</td>
            <td class="number nowrap">${count(one.active)}</td><td class="number">${count(one.connections)}</td><td class="number nowrap">${size(one.memory_bytes)}</td><td class="number nowrap">${rate(one.loop_lag_ms)} ms</td>`
          : html`<td colspan="7"><span class="state" data-state="down">does not answer</span></td>`}</tr>`)}</tbody></table></div>`;
}

export function Timeline({ events }) {
  if (!events.length) return html`<p class="quiet">Nothing has changed yet.</p>`;
  return html`<ol class="timeline">
    ${events.map(
      (one) => html`<li key=${`${one.who ?? one.worker ?? ""} ${one.number}`}><time datetime=${new Date(one.at_ms).toISOString()}>${instant(one.at_ms)}</time>
        <span class="subject">${one.subject ?? one.path}</span> <span class="state" data-state=${one.state ?? one.kind}>${one.state ?? one.kind}</span>
        <span class="quiet">${one.cause ?? one.detail}${one.who ?? one.worker ? ` (${one.who ?? one.worker})` : ""}</span></li>`,
    )}
  </ol>`;
}

export function Overview({ state, history }) {
  if (!state || !history) return html`<p class="quiet">Waiting for the broker…</p>`;
  const now = state.latest;
  const at = history.at_ms.map((ms) => ms / 1000);
  const column = (name) => history[name];
  return html`<section aria-labelledby="overview-title">
    <h1 id="overview-title">Overview</h1>
    <ul class="alarms" aria-label="Alarms">
      ${state.alarms.length ? state.alarms.map((one) => html`<li data-level=${one.level}>${one.text}${one.worker ? html` <small>${one.worker}</small>` : ""}</li>`) : html`<li data-level="good">No alarms</li>`}
    </ul>
    <dl class="figures">
      <${Figure} label="In per second" value=${rate(now.sent_per_second)} />
      <${Figure} label="Out per second" value=${rate(now.received_per_second)} />
      <${Figure} label="Active messages" value=${count(now.active)} />
      <${Figure} label="Oldest message" value=${now.oldest_ms ? span(now.oldest_ms) : "–"} />
      <${Figure} label="Dead letters" value=${count(now.dead_letters)} level=${now.dead_letters ? "slow" : null} />
      <${Figure} label="Connections" value=${count(now.connections)} />
      <${Figure} label="Memory" value=${size(now.memory_bytes)} />
      <${Figure} label="Disk free" value=${now.disk_bytes ? size(now.disk_free_bytes) : "in memory"} />
      <${Figure} label="Loop lag" value=${`${rate(now.loop_lag_ms)} ms`} />
      <${Figure} label="Entities" value=${count(state.entities)} />
      <${Figure} label="Relays" value=${count(state.relays)} />
    </dl>
    <${Stores} stores=${state.stores} />
    <div class="charts">
      <${Chart} title="Messages per second" format=${rate} data=${[at, column("sent_per_second"), column("received_per_second")]}
        series=${[{ label: "in", colour: "--blue" }, { label: "out", colour: "--good" }]} />
      <${Chart} title="Messages" round="whole" format=${count} data=${[at, column("active"), column("dead_letters")]}
        series=${[{ label: "active", colour: "--blue" }, { label: "dead letters", colour: "--bad" }]} />
      <${Chart} title="Oldest message" round="span" format=${(ms) => span(ms)} data=${[at, column("oldest_ms")]} series=${[{ label: "age", colour: "--slow" }]} />
      <${Chart} title="Memory" round="bytes" format=${size} data=${[at, column("memory_bytes")]} series=${[{ label: "resident", colour: "--violet" }]} />
      <${Chart} title="Connections" round="whole" format=${count} data=${[at, column("connections")]} series=${[{ label: "open", colour: "--blue" }]} />
      <${Chart} title="Event loop" format=${(ms) => `${rate(ms)} ms`} data=${[at, column("loop_lag_ms")]} series=${[{ label: "lag", colour: "--slow" }]} />
    </div>
    ${state.workers && html`<${Workers} workers=${state.workers} />`}
    <h2>State changes</h2>
    <${Timeline} events=${[...state.events].reverse().slice(0, 50)} />
  </section>`;
}
