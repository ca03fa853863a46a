// The cluster that this broker is a node of: who lives, who serves what, how quick the engine is. The same from every node.
import { html, useEffect, useState } from "./lib.js";
import { call } from "./api.js";
import { complain } from "./parts.js";
import { count, span } from "./format.js";

const milliseconds = (value) => (value === undefined || value === null ? "–" : `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`);

function NodeRow({ node, figures, stores, asked }) {
  const said = figures[node.name];
  const serves = stores.filter((one) => one.owner === node.name && one.served).length;
  const state = !node.lives ? "dead" : node.draining ? "draining" : "lives";
  const carried = said && Object.entries(said.carried_links).map(([to, links]) => `${count(links)} to ${to}`).join(", ");
  return html`<tr data-state=${state}><td><strong>${node.name}</strong>${node.name === asked ? html` <span class="badge">this one</span>` : ""}</td>
    <td><span class="state" data-state=${node.lives ? "up" : "down"}>${state}</span></td><td>${node.version}</td><td class="number">${count(serves)}</td>
    <td class="number">${said ? count(said.takeovers) : "–"}</td><td class="number nowrap">${milliseconds(said?.beat_ms)}</td><td class="number nowrap">${milliseconds(said?.commit_ms)}</td>
    <td class="number">${said ? count(said.connections) : "–"}</td><td>${said ? carried || "none" : node.lives ? "does not answer" : "–"}</td></tr>`;
}

export function Cluster({ beat }) {
  const [told, set] = useState(null);
  useEffect(() => {
    call("GET", "cluster").then(set, (error) => error.status && complain(error));
  }, [Math.floor(beat / 2)]);
  if (!told) return html`<p class="quiet">…</p>`;
  const alone = told.stores.filter((one) => !one.served);
  return html`<section aria-labelledby="cluster-title">
    <h1 id="cluster-title">Cluster</h1>
    <ul class="alarms" aria-label="Alarms">
      ${[...told.nodes.filter((one) => !one.lives).map((one) => ({ level: "slow", text: `node ${one.name} is dead` })),
        ...(alone.length ? [{ level: "bad", text: `${alone.length} stores are served by nobody` }] : []),
        ...told.notes.map((text) => ({ level: "slow", text }))].map((one) => html`<li data-level=${one.level}>${one.text}</li>`)}
    </ul>
    <h2>Nodes</h2>
    <div class="table" tabindex="0" role="region" aria-label="Nodes"><table>
      <thead><tr><th>Node</th><th>State</th><th>Version</th><th class="number">Stores</th><th class="number">Takeovers</th><th class="number">Beat</th><th class="number">Commit</th><th class="number">Connections</th><th>Carried links</th></tr></thead>
      <tbody>${told.nodes.map((node) => html`<${NodeRow} key=${node.name} node=${node} figures=${told.figures} stores=${told.stores} asked=${told.asked} />`)}</tbody></table></div>
    <p class="quiet">Beat: how long the engine took for the last one. Commit: the mean time from handing a group to the engine until it was durable.</p>
    <h2>Stores</h2>
    <div class="table" tabindex="0" role="region" aria-label="Stores"><table>
      <thead><tr><th>Store</th><th>Served by</th><th class="number">Epoch</th><th>Moving to</th></tr></thead>
      <tbody>${told.stores.map((one) => html`<tr key=${one.store}><td>store-${one.store}</td>
        <td>${one.served ? one.owner : html`<span class="state" data-state="down">nobody</span>${one.owner ? html` <small>last: ${one.owner}</small>` : ""}`}</td>
        <td class="number">${count(one.epoch)}</td><td>${one.wanted && one.wanted !== one.owner ? one.wanted : ""}</td></tr>`)}</tbody></table></div>
    ${told.followers.length > 0 && html`<h2>Followers</h2>
    <ul class="stores" aria-label="Followers">${told.followers.map((one) => html`<li key=${one.name}><strong>${one.name}</strong> ${span(one.lag_seconds * 1000)} and ${count(one.lag_messages)} messages behind</li>`)}</ul>`}
  </section>`;
}
