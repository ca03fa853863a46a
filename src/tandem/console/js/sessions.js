// The sessions of an entity with their state, and who holds them.
import { html, useCallback, useEffect, useState } from "./lib.js";
import { can, call, post } from "./api.js";
import { Dialog, Field, complain, say } from "./parts.js";
import { count, instant, size } from "./format.js";
import { Body } from "./body.js";

const PAGE = 100;

function State({ path, session, onClose, onDone }) {
  const [text, set] = useState(() => (session.state_base64 ? new TextDecoder().decode(Uint8Array.from(atob(session.state_base64), (one) => one.charCodeAt(0))) : ""));
  const write = async (state) => {
    try {
      await call("PUT", "session", { path, session: session.session_id, state_base64: state === null ? undefined : btoa(String.fromCharCode(...new TextEncoder().encode(state))) });
      say(`state of ${session.session_id} ${state === null ? "cleared" : "set"}`);
      onDone();
    } catch (error) {
      complain(error);
    }
  };
  return html`<${Dialog} title="State of session ${session.session_id}" onClose=${onClose} wide>
    ${session.state_base64 ? html`<${Body} base64=${session.state_base64} />` : html`<p class="quiet">It has no state.</p>`}
    ${session.held
      ? html`<p class="quiet">Somebody holds the session until ${instant(session.locked_until_ms)}; its state can be set when it is free.</p>`
      : html`<${Field} label="New state" rows=${4} value=${text} onInput=${set} />
        <footer><button onClick=${() => write(null)}>Clear</button><button class="primary" onClick=${() => write(text)}>Set</button></footer>`}
  </${Dialog}>`;
}

export function Sessions({ path }) {
  const [skip, setSkip] = useState(0);
  const [page, set] = useState(null);
  const [open, setOpen] = useState(null);
  const read = useCallback(() => post("sessions", { path, skip, top: PAGE }).then(set, complain), [path, skip]);
  useEffect(() => {
    read();
  }, [read]);
  if (!page) return html`<p class="quiet">…</p>`;
  return html`<div>
    <div class="table" tabindex="0" role="region" aria-label="Sessions"><table>
      <thead><tr><th>Session</th><th class="number">Messages</th><th>Held until</th><th class="number">State</th><th><span class="hidden">Look</span></th></tr></thead>
      <tbody>${page.sessions.map((one) => html`<tr key=${one.session_id}><td>${one.session_id}</td><td class="number">${count(one.messages)}</td><td>${one.held ? instant(one.locked_until_ms) : "free"}</td>
        <td class="number">${one.state_base64 === null ? "–" : size(one.state_bytes)}</td><td class="actions"><button onClick=${() => setOpen(one)} aria-label="State of ${one.session_id}">State…</button></td></tr>`)}</tbody>
    </table></div>
    ${!page.sessions.length && html`<p class="quiet">There are no sessions.</p>`}
    <div class="bar"><button disabled=${!skip} onClick=${() => setSkip(Math.max(0, skip - PAGE))}>Previous</button><button disabled=${!page.more} onClick=${() => setSkip(skip + PAGE)}>Next</button><button onClick=${read}>Refresh</button></div>
    ${open && html`<${State} path=${path} session=${open} onClose=${() => setOpen(null)} onDone=${() => (setOpen(null), read())} />`}
  </div>`;
}

export const SESSION_PAGE = { name: "sessions", label: () => "Sessions", fits: (entity) => Boolean(entity.description.requires_session) && can("Listen", entity.path), page: Sessions };
