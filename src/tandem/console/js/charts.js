// Time series with uPlot, in the colours of the page; each has its last value as text for those who cannot see it.
import { html, useEffect, useRef } from "./lib.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function Chart({ title, series, data, format }) {
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
          axes: [axis, { ...axis, size: 64, values: (_, ticks) => ticks.map(format) }],
          scales: { y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
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
