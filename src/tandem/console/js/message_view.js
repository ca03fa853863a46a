// One message with everything it has, and what may be done with it.
import { html, useEffect, useState } from "./lib.js";
import { bytes, can, post } from "./api.js";
import { Dialog, complain, confirm, say } from "./parts.js";
import { instant, size, spanText } from "./format.js";
import { Body } from "./body.js";
import { download } from "./lines.js";

function Values({ title, values }) {
  if (!values.length) return null;
  return html`<h3>${title}</h3><table><thead class="hidden"><tr><th>Name</th><th>Type</th><th>Value</th></tr></thead>
    <tbody>${values.map((one) => html`<tr key=${one.name}><th scope="row">${one.name}</th><td class="quiet">${one.type}</td><td>${typeof one.value === "object" && one.value !== null ? JSON.stringify(one.value) : String(one.value)}</td></tr>`)}</tbody></table>`;
}

export function MessageView({ path, home, seq, onClose, onChange, onResubmit }) {
  const [message, set] = useState(null);
  const [wrong, setWrong] = useState("");
  useEffect(() => {
    post("message", { path, sequence_number: seq }).then(set, (error) => setWrong(error.short));
  }, [path, seq]);
  const act = async (what, body, done) => {
    try {
      const told = await post(what, { path, sequence_numbers: [seq], ...body });
      if (told.skipped.length) say(told.skipped[0].reason, "bad");
      else say(done);
      onChange();
      onClose();
    } catch (error) {
      complain(error);
    }
  };
  const remove = async () => {
    const cancels = message.state === "scheduled";
    if (!(await confirm(cancels ? `Cancel scheduled message ${seq}?` : `Remove message ${seq} for good?`, cancels ? "Cancel it" : "Remove"))) return;
    await act("messages/remove", {}, cancels ? "cancelled" : "removed");
  };
  const save = async () => {
    try {
      download(await bytes("message/body", { path, sequence_number: seq }), `message-${seq}.bin`);
    } catch (error) {
      complain(error);
    }
  };
  const known = message && [
    ["State", message.state],
    ["Enqueued", instant(message.enqueued_time_utc)],
    ["Scheduled for", instant(message.scheduled_enqueue_time_utc)],
    ["Expires", instant(message.expires_at_utc)],
    ["Time to live", message.time_to_live_ms !== undefined ? spanText(message.time_to_live_ms) : ""],
    ["Deliveries failed", message.delivery_count],
    ["Size", size(message.size_bytes)],
    ["Dead-letter reason", message.dead_letter_reason],
    ["Dead-letter description", message.dead_letter_error_description],
    ["Dead-letter source", message.dead_letter_source],
  ].filter(([, value]) => value !== undefined && value !== "");
  return html`<${Dialog} title="Message ${seq}" onClose=${onClose} wide>
    ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
    ${message && html`<div class="message">
      <dl class="settings">${known.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
      <h3>Body <span class="quiet">${message.body_kind === "data" ? "" : `AMQP ${message.body_kind}, `}${size(message.body_bytes)}</span></h3>
      <${Body} base64=${message.body_base64} />
      ${message.body_bytes > 262144 && html`<p class="quiet">The first 256 KiB of ${size(message.body_bytes)} are shown.</p>`}
      <${Values} title="Application properties" values=${message.properties} />
      <${Values} title="Properties" values=${message.system} />
      <${Values} title="Annotations" values=${message.annotations} />
      <${Values} title="Footer" values=${message.footer} />
      <footer>
        <button onClick=${save}>Download the body</button>
        ${can("Listen", home) && html`<button class="danger" onClick=${remove}>${message.state === "scheduled" ? "Cancel it…" : "Remove…"}</button>`}
        ${message.state === "deferred" && html`<button onClick=${() => act("messages/resubmit", {}, "fetched and sent again")}>Fetch and send again</button>`}
        ${["active", "deferred"].includes(message.state) && html`<button class="primary" onClick=${() => onResubmit(message)}>Edit and resubmit…</button>`}
      </footer>
    </div>`}
  </${Dialog}>`;
}
