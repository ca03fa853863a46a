// Sending from a form: once or many times, now or later; and from a file of lines.
import { html, useState } from "./lib.js";
import { can, now, post } from "./api.js";
import { Field, Mistake, RunState, complain, say, useRun } from "./parts.js";
import { count, milliseconds } from "./format.js";
import { readLines } from "./lines.js";

const TEXTS = [
  ["message_id", "Message id"],
  ["subject", "Subject"],
  ["session_id", "Session id"],
  ["correlation_id", "Correlation id"],
  ["content_type", "Content type"],
  ["partition_key", "Partition key"],
  ["to", "To"],
  ["reply_to", "Reply to"],
];
const CHUNK = 500;

export function Send({ path, onChange }) {
  const [texts, setTexts] = useState({});
  const [body, setBody] = useState("");
  const [properties, setProperties] = useState("");
  const [repeat, setRepeat] = useState("1");
  const [later, setLater] = useState("");
  const [ttl, setTtl] = useState("");
  const [wrong, setWrong] = useState("");
  const [run, start, stop, forget] = useRun();
  const built = () => {
    const line = { body, ...Object.fromEntries(Object.entries(texts).filter(([, value]) => value)) };
    if (properties.trim()) line.properties = JSON.parse(properties);
    if (ttl.trim()) {
      line.time_to_live_ms = milliseconds(ttl);
      if (!line.time_to_live_ms) throw new Mistake("Time to live: write it like 30s, 5m or 2h");
    }
    return line;
  };
  const instantOf = () => {
    if (!later.trim()) return undefined;
    const span = milliseconds(later);
    const at = span !== null && span < 9e14 ? now() + span : Date.parse(later);
    if (!Number.isFinite(at)) throw new Mistake("Schedule: write a span like 10m, or a moment like 2030-01-31T12:00:00Z");
    return Math.round(at);
  };
  const submit = async (event) => {
    event.preventDefault();
    setWrong("");
    try {
      const line = built();
      const at = instantOf();
      const times = Number(repeat);
      if (!Number.isInteger(times) || times < 1 || times > 1000000) throw new Mistake("Repeat: from 1 to 1,000,000 times");
      let sent = 0;
      const size = Math.max(1, Math.min(CHUNK, Math.floor(700000 / (JSON.stringify(line).length + 1))));
      await start("Sending", times, async () => {
        const more = Math.min(size, times - sent);
        const messages = Array.from({ length: more }, (_, one) => (times > 1 && line.message_id ? { ...line, message_id: `${line.message_id}-${sent + one + 1}` } : line));
        const told = await post("messages/send", { path, messages, scheduled_at_ms: at });
        sent += told.sent;
        return { done: told.sent, finished: sent >= times };
      });
      say(`${count(sent)} ${at ? "scheduled" : "sent"}`);
      onChange();
    } catch (error) {
      setWrong(error.short ?? error.message);
    }
  };
  const take = async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (!file) return;
    try {
      const groups = readLines(await file.text());
      const total = groups.reduce((sum, group) => sum + group.length, 0);
      if (!total) throw new Mistake(`${file.name} has no messages`);
      let at = 0;
      const { done } = await start(`Importing ${file.name}`, total, async () => {
        const told = await post("messages/send", { path, messages: groups[at] });
        at += 1;
        return { done: told.sent, finished: at === groups.length };
      });
      say(`${count(done)} messages imported`);
      onChange();
    } catch (error) {
      complain(error);
    }
  };
  return html`<div class="send">
    <form onSubmit=${submit}>
      <${Field} label="Body" rows=${8} value=${body} onInput=${setBody} />
      <${Field} label="Application properties" rows=${3} value=${properties} onInput=${setProperties} hint='JSON: {"region": "eu", "total": 5}' />
      <div class="grid">
        ${TEXTS.map(([name, label]) => html`<${Field} key=${name} label=${label} value=${texts[name] ?? ""} onInput=${(value) => setTexts({ ...texts, [name]: value })} />`)}
        <${Field} label="Time to live" value=${ttl} onInput=${setTtl} placeholder="30s, 5m, 2h" />
        <${Field} label="Schedule" value=${later} onInput=${setLater} placeholder="10m, or 2030-01-31T12:00:00Z" />
        <${Field} label="Repeat" type="number" min="1" value=${repeat} onInput=${setRepeat} />
      </div>
      ${wrong && html`<p class="wrong" role="alert">${wrong}</p>`}
      <p><button class="primary">Send</button></p>
    </form>
    <h2>Import</h2>
    <p><label>Lines of JSON, as Export and <code>tandem peek --json</code> write them <input type="file" accept=".jsonl,.json,.ndjson,.txt" onChange=${take} /></label></p>
    <${RunState} state=${run} stop=${stop} forget=${forget} />
  </div>`;
}

export const SEND_PAGE = { name: "send", label: () => "Send", fits: (entity) => ["queue", "topic"].includes(entity.kind) && can("Send", entity.path), page: Send };
