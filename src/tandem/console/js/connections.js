// Who is connected, and with what; one of them can be closed.
import { html, useCallback, useEffect, useState } from "./lib.js";
import { page } from "./api.js";
import { complain, confirm, say } from "./parts.js";
import { count, span } from "./format.js";

const SHOWN = 500;

export function Connections({ beat }) {
  const [told, set] = useState(null);
  const read = useCallback(() => page("GET", "connections").then(set, (error) => error.status && complain(error)), []);
  useEffect(() => {
    read();
  }, [Math.floor(beat / 3)]);
  const close = async (peer) => {
    if (!(await confirm(`Close the connection from ${peer}? Its client will connect again.`, "Close it"))) return;
    try {
      await page("DELETE", `connections/${encodeURIComponent(peer)}`);
      say(`${peer} closed`);
      read();
    } catch (error) {
      complain(error);
    }
  };
  if (!told) return html`<p class="quiet">…</p>`;
  return html`<section aria-labelledby="connections-title">
    <h1 id="connections-title">Connections</h1>
    <p class="quiet">${count(told.total)} AMQP connections${told.total > SHOWN ? `; the first ${SHOWN} are shown` : ""}</p>
    <div class="table" tabindex="0" role="region" aria-label="Connections"><table>
      <thead><tr><th>From</th><th>Client</th><th>Open for</th><th>Links</th><th><span class="hidden">Close</span></th></tr></thead>
      <tbody>${told.connections.slice(0, SHOWN).map((one) => html`<tr key=${one.peer}><td>${one.peer}</td><td>${one.client || one.container_id}${one.reads_slowly ? html` <span class="badge">reads slowly</span>` : ""}</td>
        <td>${span(one.open_seconds * 1000)}</td><td>${one.links.slice(0, 20).map((link) => html`<div>${link.role} ${link.entity}</div>`)}${one.link_count > 20 ? html`<div class="quiet">and ${one.link_count - 20} more</div>` : ""}</td>
        <td class="actions"><button onClick=${() => close(one.peer)} aria-label="Close ${one.peer}">Close…</button></td></tr>`)}</tbody></table></div>
  </section>`;
}
