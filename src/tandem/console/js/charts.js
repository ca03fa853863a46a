// Time series with uPlot, in the colours of the page; each has its last value as text for those who cannot see it.
import { html, useEffect, useRef } from "./lib.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// As wide as its widest label: "1,000,000" needs more room than "10".
const room = (_, labels) => Math.max(40, ...(labels ?? []).map((one) => 20 + 6.5 * String(one).length));

// Instants as everywhere on these pages: UTC, with seconds only where ticks are closer than a minute.
const clock = (_, ticks) => ticks.map((at) => new Date(at * 1000).toISOString().slice(11, ticks[1] - ticks[0] < 60 ? 19 : 16));

// Distances between ticks that people find round, in what an axis shows: bytes, milliseconds of a span; others as uPlot has them.
export const ROUND = {
  bytes: Array.from({ length: 45 }, (_, power) => 2 ** power),
  span: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 30000, ...[1, 2, 5, 10, 20, 30].map((one) => one * 60000), ...[1, 2, 6, 12].map((one) => one * 3600000), ...[1, 2, 5, 10, 20, 50, 100, 200, 500].map((one) => one * 86400000)],
  whole: [1, 2, 5].flatMap((one) => Array.from({ length: 13 }, (_, power) => one * 10 ** power)).sort((a, b) => a - b),
};

export function Chart({ title, series, data, format, round }) {
  const box = useRef();
  const plot = useRef();
  const theme = document.documentElement.dataset.theme;
  useEffect(() => {
    const place = box.current;
    const width = () => Math.max(200, place.clientWidth);
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") }, font: "11px system-ui" };
    const made = (plot.current =
      new uPlot(
        {
          width: width(),
          height: 170,
          legend: { show: false },
          cursor: { y: false },
          axes: [{ ...axis, size: 32, values: clock }, { ...axis, size: room, values: (_, ticks) => ticks.map(format), ...(round ? { incrs: ROUND[round] } : {}) }],
          scales: { x: { range: (_, first, last) => [Math.min(first, last - 60), last] }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
          series: [{}, ...series.map((one) => ({ label: one.label, stroke: colour(one.colour), width: 1.5, points: { show: false } }))],
        },
        data,
        place,
      ));
    const observer = new ResizeObserver(() => made.setSize({ width: width(), height: 170 }));
    observer.observe(place);
    return () => {
      observer.disconnect();
      plot.current = null;
      made.destroy();
    };
  }, [theme]);
  useEffect(() => plot.current?.setData(data), [data]);
  const last = (at) => data[at + 1]?.[data[at + 1].length - 1];
  const words = series.map((one, at) => `${one.label} ${format(last(at) ?? 0)}`).join(", ");
  return html`<figure class="chart">
    <figcaption><strong>${title}</strong>
      ${series.map((one, at) => html`<span class="key"><i style=${{ background: `var(${one.colour})` }}></i>${one.label} <b>${format(last(at) ?? 0)}</b></span>`)}
    </figcaption>
    <div ref=${box} role="img" aria-label="${title} of the last hour; now ${words}"></div>
  </figure>`;
}
