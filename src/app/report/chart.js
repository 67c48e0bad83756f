// Draws line charts as SVG. A chart is {title, unit, wide, fromZero, mayBeLog, curves, marks}.
// A curve is {label, color, look, dash, run, steps, values} with null at gaps; its color is a
// property in report.css, its look undefined, 'faint' or 'dots', and its dash one of its classes;
// an unlisted one is not in the legend.
// Marks are {label, color, run, steps}: vertical lines. An x axis is {unit, of(run, step), whole}.
// A view is {axis, range, smoothing, logs}: the shown part of the axis, or null; the part of the
// shown steps over which curves are smoothed; and by title the scales that the reader has chosen.
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

const medianOf = values => values.toSorted((a, b) => a - b)[values.length >> 1];
/** Marks values far from the median of their stretch, as curve.cpp does. */
const outliersIn = values => {
  const far = 8, stretch = 100, marks = [];
  for (let begin = 0; begin < values.length; begin += stretch) {
    const some = values.slice(begin, begin + stretch), middle = medianOf(some);
    const distances = some.map(value => Math.abs(value - middle));
    const limit = far * medianOf(distances);
    marks.push(...distances.map(distance => distance > limit));
  }
  return marks;
};

/** Smooths a curve: means over the steps within `reach`, fewer towards the ends so that it does not
 * lag. Gaps stay gaps. Outliers keep their values and count in no mean. */
const smoothedOver = (reach, {steps, values}) => {
  const known = values.flatMap((value, i) => value === null ? [] : [i]);
  const marks = outliersIn(known.map(i => values[i])), smooth = [...values];
  const usual = known.filter((_, k) => !marks[k]), sums = [0];
  for (const i of usual) sums.push(sums.at(-1) + values[i]);
  let begin = 0, end = 0;
  for (const i of usual) {
    const around = Math.min(reach, steps[i] - steps[usual[0]], steps[usual.at(-1)] - steps[i]);
    while (steps[usual[begin]] < steps[i] - around) ++begin;
    while (end < usual.length && steps[usual[end]] <= steps[i] + around) ++end;
    smooth[i] = (sums[end] - sums[begin]) / (end - begin);
  }
  return smooth;
};

const maxPoints = 800;  // more would be below pixel resolution
/** Returns the points to draw. If there are too many, keeps the lowest and the highest in each of
 * many equal stretches, so that spikes stay visible. */
const drawable = points => {
  const stretches = maxPoints / 2;
  if (points.length <= maxPoints) return points;
  return Array.from({length: stretches}, (_, i) => {
    const begin = Math.floor(points.length * i / stretches);
    const end = Math.floor(points.length * (i + 1) / stretches);
    let low = begin, high = begin;
    for (let j = begin; j < end; ++j) {
      if (points[j] && !(points[j].value >= points[low]?.value)) low = j;
      if (points[j] && !(points[j].value <= points[high]?.value)) high = j;
    }
    return low === high ? [points[low]] : [points[Math.min(low, high)], points[Math.max(low, high)]];
  }).flat();
};

/** Returns a curve's points in a view; null for gaps, and where the scale cannot show them. */
const pointsIn = (curve, {axis, range, smoothing}, log) => {
  const shows = value =>
    value !== null && Math.abs(value) < 1e200 && !(log && value < 1e-200);
  const at = curve.steps.map(step => axis.of(curve.run, step));
  const inside = i => !range || (at[i] >= range[0] && at[i] <= range[1]);
  const shown = curve.steps.filter((_, i) => inside(i));
  const values = smoothing && !curve.look
    ? smoothedOver(smoothing * (shown.at(-1) - shown[0]), curve) : curve.values;
  const points = [];
  values.forEach((value, i) => {
    if (inside(i)) points.push(shows(value) ? {value, step: curve.steps[i], at: at[i]} : null);
  });
  return drawable(points);
};

/** Lays a chart out in a drawing. A point's x and y are its place; a point that the scale cannot
 * show is null: nonpositive on a logarithmic one, or so large that differences overflow. Returns
 * null if there is no other point. */
const layOut = (chart, view, wide) => {
  const {axis, range} = view;
  const [width, height] = wide ? [1080, 340] : [530, 260];
  const [left, right, top, bottom] = [58, width - 14, 10, height - 38];
  const curves = chart.curves.map(curve =>
    ({...curve, points: pointsIn(curve, view, chart.log)}));
  const points = curves.flatMap(curve => curve.points).filter(point => point);
  if (!points.length) return null;
  const ys = padded(rangeOf(points.map(point => point.value)), chart);
  let xs = range ?? rangeOf(points.map(point => point.at));
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
  return {curves, marks, xs, width, height, left, right, top, bottom,
    yTicks: yTicks.map((tick, i) => ({y: y(tick), text: yTexts[i]})),
    xTicks: xTicks.map((tick, i) => ({x: x(tick), text: xTexts[i]}))};
};

const px = number => number.toFixed(1);

const drawCurve = ({color, look, dash, points}) => {
  const kind = {faint: 'faint', dots: 'thin'}[look] ?? 'strong';
  const path = points.map((point, i) =>
    point && `${points[i - 1] ? 'L' : 'M'}${px(point.x)} ${px(point.y)}`).join('');
  // A point without neighbors would be invisible as a line.
  const dots = look === 'dots' || points.length === 1 ? points.filter(point => point) : [];
  return html`<g style="--c:var(--${color})">
    <path class="${kind} ${dash}" d="${path}"/>
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
    ${curves.map(drawCurve)}<path class="guide"/>
    <rect class="range" y="${top}" height="${bottom - top}"/></svg>`;
};

const drawLegend = ({curves, marks = []}) => {
  const entry = ({label, color}, kind) =>
    html`<span style="--c:var(--${color})"><i class="${kind}"></i>${label}</span> `;
  return html`<div class="legend">
    ${curves.filter(curve => curve.steps.length && !curve.unlisted)
      .map(curve => entry(curve, curve.look ?? curve.dash))}
    ${marks.filter(mark => mark.steps.length).map(mark => entry(mark, 'mark'))}</div>`;
};

/** Returns a chart as <figure>, and its layouts in the order of its <svg>. A wide chart has another
 * one for narrow screens, on which its text would be too small. */
const drawChart = (chart, view) => {
  const log = view.logs.get(chart.title) ?? (chart.mayBeLog && needsLog(chart.curves));
  const layouts = (chart.wide ? [true, false] : [false])
    .map(wide => layOut({...chart, log}, view, wide)).filter(layout => layout);
  const drawn = layouts.map((layout, i) => html`
    <div class="${chart.wide ? ['broad', 'narrow'][i] : ''}">
      ${drawLayout(layout, chart.title, view.axis.unit)}</div>`);
  return {layouts, figure: html`<figure class="${chart.wide ? 'wide' : ''}">
    <figcaption><b>${chart.title}</b> <small>${chart.unit}${log ? ', logarithmic' : ''}</small>
    <button type="button" data-title="${chart.title}" data-log="${log ? '' : 'log'}">
      ${log ? 'linear' : 'log'}</button></figcaption>${drawn.length ? [...drawn, drawLegend(chart)]
    : html`<p class="none">nothing recorded</p>`}</figure>`};
};
