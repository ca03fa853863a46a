// The cluster that this broker is a node of: who lives, who serves what, how quick the engine is. The same from every node.
import { html, useEffect, useState } from "./lib.js";
import { call, can, post } from "./api.js";
import { Dialog, Field, Progress, complain, confirm, say } from "./parts.js";
import { count, span } from "./format.js";

const milliseconds = (value) => (value === undefined || value === null ? "–" : `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`);

// Told to the engine; what comes of it is seen in the tables, beat by beat.
async function wish(what, body) {
  try {
    say((await post(`cluster/${what}`, body)).said);
  } catch (error) {
    complain(error);
  }
}

async function drain(node, serves) {
  const text = `Drain node ${node}? It will serve nothing until you end that: what it serves now${serves ? ` (${count(serves)} stores of this namespace)` : ""} moves to others.`;
  if (await confirm(text, "Drain")) await wish("drain", { node });
}

function MoveForm({ told, onClose }) {
  const nodes = told.nodes.filter((one) => one.lives && !one.draining).map((one) => one.name);
  const [node, setNode] = useState(nodes.find((name) => told.stores.some((one) => one.owner !== name)) ?? "");
  const [store, setStore] = useState("");
  const what = store === "" ? `all stores of ${told.namespace}` : `store-${store}`;
  const go = async () => {
    onClose();
    if (await confirm(`Move ${what} to node ${node}? Clients wait while a store changes hands; nothing is lost.`, "Move")) await wish("move", { node, ...(store === "" ? {} : { store: Number(store) }) });
  };
  return html`<${Dialog} title="Move stores" onClose=${onClose}>
    ${told.single && html`<${Field} label="What" value=${store} onInput=${setStore} options=${[{ value: "", label: "All stores" }, ...told.stores.map((one) => ({ value: String(one.store), label: `store-${one.store}, served by ${one.owner || "nobody"}` }))]} />`}
    <${Field} label="To node" value=${node} onInput=${setNode} options=${nodes} />
    <footer><button onClick=${onClose}>Cancel</button><button class="primary" disabled=${!node} onClick=${go}>Move…</button></footer>
  </${Dialog}>`;
}

function Moving({ told }) {
  const leaving = told.stores.filter((one) => one.wanted && one.wanted !== one.owner && told.nodes.some((node) => node.name === one.wanted && node.lives));
  const draining = told.nodes.filter((one) => one.draining).map((one) => ({ name: one.name, left: told.stores.filter((store) => store.owner === one.name && store.served).length }));
  const total = told.stores.length;
  return html`${leaving.length > 0 && html`<${Progress} label=${`Moving: ${count(leaving.length)} of ${count(total)} stores are on their way`} done=${total - leaving.length} total=${total} />`}
    ${draining.map((one) => html`<${Progress} key=${one.name} label=${one.left ? `Draining ${one.name}: ${count(one.left)} stores are still there` : `Drained: ${one.name} serves nothing of this namespace`} done=${total - one.left} total=${total} />`)}`;
}

function NodeRow({ node, figures, stores, asked }) {
  const said = figures[node.name];
  const serves = stores.filter((one) => one.owner === node.name && one.served).length;
  const state = !node.lives ? "dead" : node.draining ? "draining" : "lives";
  const carried = said && Object.entries(said.carried_links).map(([to, links]) => `${count(links)} to ${to}`).join(", ");
  return html`<tr data-state=${state}><td><strong>${node.name}</strong>${node.name === asked ? html` <span class="badge">this one</span>` : ""}</td>
    <td><span class="state" data-state=${node.lives ? "up" : "down"}>${state}</span></td><td>${node.version}</td><td class="number">${count(serves)}</td>
    <td class="number">${said ? count(said.takeovers) : "–"}</td><td class="number nowrap">${milliseconds(said?.beat_ms)}</td><td class="number nowrap">${milliseconds(said?.commit_ms)}</td>
    <td class="number">${said ? count(said.connections) : "–"}</td><td>${said ? carried || "none" : node.lives ? "does not answer" : "–"}</td>
    ${can("Manage") && html`<td class="actions">${node.draining
      ? html`<button onClick=${() => wish("drain", { node: node.name, end: true })} aria-label="End draining ${node.name}">End draining</button>`
      : html`<button onClick=${() => drain(node.name, serves)} aria-label="Drain ${node.name}">Drain…</button>`}</td>`}</tr>`;
}

export function Cluster({ beat }) {
  const [told, set] = useState(null);
  const [moving, setMoving] = useState(false);
  useEffect(() => {
    call("GET", "cluster").then(set, (error) => error.status && complain(error));
  }, [Math.floor(beat / 2)]);
  if (!told) return html`<p class="quiet">…</p>`;
  const alone = told.stores.filter((one) => !one.served);
  const several = told.stores.some((one) => one.engine);
  return html`<section aria-labelledby="cluster-title">
    <h1 id="cluster-title">Cluster</h1>
    <ul class="alarms" aria-label="Alarms">
      ${[...told.nodes.filter((one) => !one.lives).map((one) => ({ level: "slow", text: `node ${one.name} is dead` })),
        ...(alone.length ? [{ level: "bad", text: `${alone.length} stores are served by nobody` }] : []),
        ...told.notes.map((text) => ({ level: "slow", text }))].map((one) => html`<li data-level=${one.level}>${one.text}</li>`)}
    </ul>
    <h2>Nodes</h2>
    <div class="table" tabindex="0" role="region" aria-label="Nodes"><table>
      <thead><tr><th>Node</th><th>State</th><th>Version</th><th class="number">Stores</th><th class="number">Takeovers</th><th class="number">Beat</th><th class="number">Commit</th><th class="number">Connections</th><th>Carried links</th>${can("Manage") && html`<th><span class="hidden">What to do</span></th>`}</tr></thead>
      <tbody>${told.nodes.map((node) => html`<${NodeRow} key=${node.name} node=${node} figures=${told.figures} stores=${told.stores} asked=${told.asked} />`)}</tbody></table></div>
    <p class="quiet">Beat: how long the engine took for the last one. Commit: the mean time from handing a group to the engine until it was durable.</p>
    <div class="bar"><h2>Stores</h2>${can("Manage") && html`<button onClick=${() => setMoving(true)}>Move…</button>`}</div>
    <${Moving} told=${told} />
    ${moving && html`<${MoveForm} told=${told} onClose=${() => setMoving(false)} />`}
    <div class="table" tabindex="0" role="region" aria-label="Stores"><table>
      <thead><tr><th>Store</th>${several && html`<th>Engine</th>`}<th>Served by</th><th class="number">Epoch</th><th>Moving to</th></tr></thead>
      <tbody>${told.stores.map((one) => html`<tr key=${one.store}><td>store-${one.store}</td>${several && html`<td>${one.engine}</td>`}
        <td>${one.served ? one.owner : html`<span class="state" data-state="down">nobody</span>${one.owner ? html` <small>last: ${one.owner}</small>` : ""}`}</td>
        <td class="number">${count(one.epoch)}</td><td>${one.wanted && one.wanted !== one.owner ? one.wanted : ""}</td></tr>`)}</tbody></table></div>
    ${told.followers.length > 0 && html`<h2>Followers</h2>
    <ul class="stores" aria-label="Followers">${told.followers.map((one) => html`<li key=${one.name + " " + one.engine}><strong>${one.name}</strong>${one.engine === "first" ? "" : ` (engine ${one.engine})`} ${span(one.lag_seconds * 1000)} and ${count(one.lag_messages)} messages behind</li>`)}</ul>`}
  </section>`;
}
