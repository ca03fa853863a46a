// A body as JSON, XML, text or bytes. Always text to the page: what a message says is shown, never run.
import { html, useMemo, useState } from "./lib.js";

export const bytesOf = (base64) => Uint8Array.from(atob(base64), (one) => one.charCodeAt(0));
const SHOWN = 200000;

function text(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

function json(found) {
  try {
    return JSON.stringify(JSON.parse(found), null, 2);
  } catch {
    return null;
  }
}

// Indented by its tags alone: nothing is parsed into a document, so nothing in it can act.
function xml(found) {
  if (!/^\s*<[?!a-zA-Z]/.test(found)) return null;
  let level = 0;
  return found
    .replace(/>\s*</g, ">\n<")
    .split("\n")
    .map((line) => {
      if (/^<\//.test(line)) level = Math.max(0, level - 1);
      const shown = "  ".repeat(level) + line;
      if (/^<[^!?/][^>]*[^/]>$/.test(line) || /^<[a-zA-Z]>$/.test(line)) level += 1;
      return shown;
    })
    .join("\n");
}

export function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, 65536); at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    const numbers = part.map((one) => one.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    lines.push(`${at.toString(16).padStart(8, "0")}  ${numbers}  ${part.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : ".")).join("")}`);
  }
  return lines.join("\n");
}

export function Body({ base64 }) {
  const views = useMemo(() => {
    const bytes = bytesOf(base64);
    const found = text(bytes);
    const all = { JSON: found && json(found), XML: found && xml(found), Text: found ?? new TextDecoder().decode(bytes), Hex: hex(bytes) };
    return { all, best: found === null ? "Hex" : all.JSON ? "JSON" : all.XML ? "XML" : "Text" };
  }, [base64]);
  const [chosen, set] = useState(null);
  const view = chosen ?? views.best;
  const shown = views.all[view] ?? "";
  return html`<div class="body">
    <div role="group" aria-label="Show the body as">
      ${Object.keys(views.all).map((one) => html`<button class="plain" aria-pressed=${view === one} disabled=${views.all[one] === null} onClick=${() => set(one)} key=${one}>${one}</button>`)}
    </div>
    <pre tabindex="0" aria-label="Body as ${view}">${shown.slice(0, SHOWN)}</pre>
    ${shown.length > SHOWN && html`<p class="quiet">The rest is in the download.</p>`}
  </div>`;
}
