// Draws line charts as SVG. A chart is {title, unit, wide, fromZero, mayBeLog, curves, marks}.
// A curve is {label, color, look, dashed, run, steps, values} with null at gaps; its color is a
// property in report.css, and its look undefined, 'faint' or 'dots'. Marks are {label, color, run,
// steps}: vertical lines. An x axis is {unit, of(run, step), whole}.
'use strict';

class Markup {
  constructor(text) { this.text = text; }
}
/** Makes Markup from a template. Escapes the values in it, except Markup, joins arrays, and leaves
 * out what is false or undefined. */
const html = (parts, ...values) => {
  const insert = value => value instanceof Markup ? value.text
    : Array.isArray(value) ? value.map(insert).join('')
    : String(value || value === 0 ? value : '').replace(/[&<>"']/g, c => `&#${c.charCodeAt(0)};`);
  return new Markup(parts.map((part, i) => i ? insert(values[i - 1]) + part : part).join(''));
};

/** Returns about `count` ticks at 1, 2 or 5 times a power of ten within [low, high]. */
const niceTicks = (low, high, count) => {
  const raw = (high - low) / count;
  if (!(raw > 1e-12 * Math.max(Math.abs(low), Math.abs(high)))) return [];  // too fine to count
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 5].find(leading => leading * power >= 0.9 * raw) ?? 10);
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  return Array.from({length: last - first + 1}, (_, i) => (first + i) * step);
};
const logTicks = (low, high) => {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high)), ticks = [];
  for (let decade = first; decade <= last; ++decade)
    for (const leading of last - first > 3 ? [1] : [1, 2, 5])
      ticks.push(Number(`${leading}e${decade}`));
  return ticks.filter(tick => tick >= low && tick <= high);
};

const thousands = new Intl.NumberFormat('en', {notation: 'compact', maximumSignificantDigits: 9});
/** Formats the ticks of an axis alike; `step` is their distance, undefined if they have none. */
const tickTexts = (ticks, step) => {
  const largest = Math.max(...ticks.map(Math.abs));
  const decimals = Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
  return ticks.map(tick => largest >= 1e4 ? thousands.format(tick)
    : tick === 0 && largest < 0.01 ? '0'
    : largest < 0.01 ? Number(tick.toPrecision(6)).toExponential()
    : decimals <= 9 ? tick.toFixed(decimals) : String(tick));
};

/** Returns a scale from [low, high] to [begin, end]. */
const linear = ([low, high], begin, end) =>
  value => begin + (value - low) / (high - low) * (end - begin);

const rangeOf = values => values.reduce(
  ([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);

/** Widens the range of a chart's values, so that it is not empty. */
const padded = ([low, high], {log, fromZero}) => {
  if (log) {
    const factor = Math.max(1.1, (high / low) ** 0.06);
    return [low / factor, high * factor];
  }
  if (fromZero) low = Math.min(low, 0);
  const room = 0.06 * (high - low) || 0.1 * Math.abs(high) || 1;
  return [fromZero && low === 0 ? 0 : low - room, high + room];
};

/** Returns true if a linear scale would leave most of the chart empty: one value far above the
 * median, or many far below it. */
const needsLog = curves => {
  const far = 8;
  const values = curves.flatMap(curve => curve.values).filter(value => value > 0);
  const at = share => values[Math.floor(values.length * share)];
  values.sort((a, b) => a - b);
  return values.at(-1) > far * at(0.5) || at(0.5) > far * at(0.05);
};

/** Lays a chart out in a drawing. A point's x and y are its place; a point that the scale cannot
 * show is null: nonpositive on a logarithmic one, or so large that differences overflow. Returns
 * null if there is no other point. */
const layOut = (chart, axis, wide) => {
  const [width, height] = wide ? [1080, 340] : [530, 260];
  const [left, right, top, bottom] = [58, width - 14, 10, height - 38];
  const shows = value =>
    value !== null && Math.abs(value) < 1e200 && !(chart.log && value < 1e-200);
  const curves = chart.curves.map(curve => ({...curve, points: curve.values.map((value, i) =>
    shows(value) ? {value, step: curve.steps[i], at: axis.of(curve.run, curve.steps[i])} : null)}));
  const points = curves.flatMap(curve => curve.points).filter(point => point);
  if (!points.length) return null;
  const ys = padded(rangeOf(points.map(point => point.value)), chart);
  let xs = rangeOf(points.map(point => point.at));
  if (xs[0] === xs[1]) xs = axis.whole ? [xs[0] - 1, xs[0] + 1] : [xs[0], xs[0] + 1];
  const x = linear(xs, left, right);
  const y = chart.log ? value => linear(ys.map(Math.log), bottom, top)(Math.log(value))
    : linear(ys, bottom, top);
  for (const point of points) [point.x, point.y] = [x(point.at), y(point.value)];
  const logs = chart.log ? logTicks(...ys) : [];
  const yTicks = logs.length > 1 ? logs : niceTicks(...ys, wide ? 6 : 5);
  const yTexts = tickTexts(yTicks, logs.length > 1 ? undefined : yTicks[1] - yTicks[0]);
  const xTicks = niceTicks(...xs, wide ? 10 : 5)
    .filter(tick => !axis.whole || Number.isInteger(tick));
  const xTexts = tickTexts(xTicks, xTicks[1] - xTicks[0]);
  const marks = (chart.marks ?? []).flatMap(({color, run, steps}) => steps
    .map(step => ({color, at: axis.of(run, step)}))
    .filter(mark => mark.at >= xs[0] && mark.at <= xs[1])
    .map(mark => ({...mark, x: x(mark.at)})));
  return {curves, marks, width, height, left, right, top, bottom,
    yTicks: yTicks.map((tick, i) => ({y: y(tick), text: yTexts[i]})),
    xTicks: xTicks.map((tick, i) => ({x: x(tick), text: xTexts[i]}))};
};

const px = number => number.toFixed(1);

const drawCurve = ({color, look, dashed, points}) => {
  const kind = {faint: 'faint', dots: 'thin'}[look] ?? 'strong';
  const path = points.map((point, i) =>
    point && `${points[i - 1] ? 'L' : 'M'}${px(point.x)} ${px(point.y)}`).join('');
  // A point without neighbors would be invisible as a line.
  const dots = look === 'dots' || points.length === 1 ? points.filter(point => point) : [];
  return html`<g style="--c:var(--${color})">
    <path class="${kind} ${dashed && 'dashed'}" d="${path}"/>
    ${dots.map(({x, y}) => html`<circle cx="${px(x)}" cy="${px(y)}" r="3.2"/>`)}</g>`;
};

const drawLayout = (layout, title, unit) => {
  const {curves, marks, width, height, left, right, top, bottom, yTicks, xTicks} = layout;
  return html`<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="${title}">
    ${yTicks.map(({y, text}) => html`<path class="grid" d="M${left} ${px(y)}H${right}"/>
      <text class="tick" x="${left - 8}" y="${px(y + 4)}" text-anchor="end">${text}</text>`)}
    <path class="axis" d="M${left} ${bottom}H${right}"/>
    ${xTicks.map(({x, text}) => html`<path class="axis" d="M${px(x)} ${bottom}v4"/>
      <text class="tick" x="${px(x)}" y="${bottom + 17}" text-anchor="middle">${text}</text>`)}
    <text class="tick" x="${right}" y="${height - 5}" text-anchor="end">${unit}</text>
    ${marks.map(({color, x}) => html`
      <path class="mark" style="--c:var(--${color})" d="M${px(x)} ${top}V${bottom}"/>`)}
    ${curves.map(drawCurve)}<path class="guide"/></svg>`;
};

const drawLegend = ({curves, marks = []}) => {
  const entry = ({label, color}, kind) =>
    html`<span style="--c:var(--${color})"><i class="${kind}"></i>${label}</span> `;
  return html`<div class="legend">
    ${curves.filter(curve => curve.steps.length)
      .map(curve => entry(curve, curve.look ?? (curve.dashed && 'dashed')))}
    ${marks.filter(mark => mark.steps.length).map(mark => entry(mark, 'mark'))}</div>`;
};

/** Returns a chart as <figure>, and its layouts in the order of its <svg>. A wide chart has another
 * one for narrow screens, on which its text would be too small. */
const drawChart = (chart, axis) => {
  const log = chart.mayBeLog && needsLog(chart.curves);
  const layouts = (chart.wide ? [true, false] : [false])
    .map(wide => layOut({...chart, log}, axis, wide)).filter(layout => layout);
  const drawn = layouts.map((layout, i) => html`
    <div class="${chart.wide ? ['broad', 'narrow'][i] : ''}">
      ${drawLayout(layout, chart.title, axis.unit)}</div>`);
  return {layouts, figure: html`<figure class="${chart.wide ? 'wide' : ''}">
    <figcaption><b>${chart.title}</b> <small>${chart.unit}${log ? ', logarithmic' : ''}</small>
    </figcaption>${drawn.length ? [...drawn, drawLegend(chart)]
    : html`<p class="none">nothing recorded</p>`}</figure>`};
};
