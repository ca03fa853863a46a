// Numbers, sizes, spans and instants as people read them.
const numbers = new Intl.NumberFormat("en");
export const count = (value) => (value === undefined || value === null ? "" : numbers.format(value));
export const rate = (value) => (value === undefined ? "" : value >= 100 ? numbers.format(Math.round(value)) : String(Math.round(value * 10) / 10));

export function size(bytes) {
  if (bytes === undefined || bytes === null) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (bytes >= 1024 && at < units.length - 1) {
    bytes /= 1024;
    at += 1;
  }
  return `${at === 0 || bytes >= 100 ? Math.round(bytes) : bytes.toFixed(1)} ${units[at]}`;
}

export function span(ms) {
  if (ms === undefined || ms === null) return "";
  if (ms >= 9e14) return "for ever";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
}

export const instant = (text) => {
  if (!text) return "";
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? String(text) : at.toISOString().replace("T", " ").replace(/\.\d+Z$/, "Z");
};

// "30s", "5m", "2h", "7d", "for ever" or milliseconds; null if it is none of these.
export function milliseconds(text) {
  const trimmed = String(text).trim().toLowerCase();
  if (["", "for ever", "forever", "never"].includes(trimmed)) return 922337203685477;
  const match = trimmed.match(/^(\d+(?:\.\d+)?) ?(ms|s|min|m|h|d)?$/);
  if (!match) return null;
  return Math.round(Number(match[1]) * { ms: 1, s: 1000, m: 60000, min: 60000, h: 3600000, d: 86400000 }[match[2] ?? "ms"]);
}

export function spanText(ms) {
  if (ms >= 9e14) return "for ever";
  for (const [unit, length] of [["d", 86400000], ["h", 3600000], ["m", 60000], ["s", 1000]]) if (ms % length === 0 && ms > 0) return `${ms / length}${unit}`;
  return `${ms}ms`;
}
