// Messages as lines of JSON, as the commands read and write them: kept in a file, and sent from one.
import { post } from "./api.js";
import { Mistake, say } from "./parts.js";
import { count } from "./format.js";

const CHUNK = 500;
const BYTES = 700000;

export function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// Those that are chosen, or all that the filter lets through.
export async function exportLines(path, filter, chosen, total, start) {
  const parts = [];
  let from = chosen.length ? String(chosen.reduce((least, one) => (BigInt(one) < least ? BigInt(one) : least), BigInt(chosen[0]))) : "0";
  const wanted = new Set(chosen);
  let left = wanted.size;
  const { done } = await start("Exporting", chosen.length || total, async () => {
    const told = await post("messages/lines", { path, from, count: CHUNK, ...filter });
    const lines = told.messages.filter((one) => !wanted.size || wanted.has(String(one.sequence_number)));
    const large = lines.filter((one) => one.large).length;
    if (told.unread) say(`${count(told.unread)} large messages were left out: a filter does not look into them`, "slow");
    if (large) say(`${large} large messages were left out: download their bodies one by one`, "slow");
    for (const line of lines) if (!line.large) parts.push(`${JSON.stringify(line)}\n`);
    left -= lines.length;
    from = told.next;
    return { done: lines.length, finished: from === null || (wanted.size > 0 && left <= 0) };
  });
  download(new Blob(parts, { type: "application/x-ndjson" }), `${path.replace(/[^a-zA-Z0-9.-]+/g, "_")}.jsonl`);
  say(`${count(done)} messages exported`);
}

// A file's lines in groups that fit into one request; every line is read before the first is sent.
export function readLines(text) {
  const groups = [[]];
  let bytes = 0;
  let number = 0;
  for (const line of text.split("\n")) {
    number += 1;
    if (!line.trim()) continue;
    let found;
    try {
      found = JSON.parse(line);
    } catch (error) {
      throw new Mistake(`line ${number}: ${error.message}`);
    }
    if (typeof found !== "object" || found === null || Array.isArray(found)) throw new Mistake(`line ${number}: a JSON object is expected`);
    if (bytes + line.length > BYTES || groups[groups.length - 1].length >= CHUNK) {
      groups.push([]);
      bytes = 0;
    }
    groups[groups.length - 1].push(found);
    bytes += line.length;
  }
  return groups.filter((group) => group.length);
}
