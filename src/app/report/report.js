// Fills <main> with the report. #data has what page_data.cpp writes: {runs, differences}. A run's
// metrics are by their keys in metrics.jsonl; of many steps, their curves have some.

const {runs, differences} = JSON.parse(document.getElementById('data').textContent);
const [run] = runs, alone = runs.length === 1;

// --- Numbers as text

const orDash = format => value => Number.isFinite(value) ? format(value) : '–';
const counted = (count, noun) => `${count} ${noun}${count === 1 ? '' : 's'}`;
const threeDigits = new Intl.NumberFormat('en', {notation: 'compact', maximumSignificantDigits: 3});
const compact = orDash(value => threeDigits.format(value));
const lossText = orDash(loss => loss.toFixed(4));
const percent = orDash(share => `${(100 * share).toFixed(1)} %`);
const units = ['B', 'KiB', 'MiB', 'GiB'];
const unitOf = value => value < 1024 ? 0 : Math.min(3, Math.floor(Math.log2(value) / 10));
const bytes = orDash(value => {
  const unit = unitOf(value);
  return `${(value / 1024 ** unit).toFixed([0, 1, 1, 2][unit])} ${units[unit]}`;
});
const duration = orDash(seconds => {
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
  return whole < 60 ? `${seconds.toFixed(1)} s`
    : minutes < 60 ? `${minutes} min ${whole % 60} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
});
const date = time => time >= 0 && time < 1e11
  ? `${new Date(1000 * time).toISOString().slice(0, 16).replace('T', ' ')} UTC` : '–';

// --- What the data say

const of = (run, key) => run.metrics[key] ?? {};
const keysIn = (run, group) => Object.keys(run.metrics).filter(key => key.startsWith(`${group}.`));
const nameOf = key => key.slice(key.indexOf('.') + 1);
const deciding = run => run.validation[0];
const bestLoss = run => Math.min(...deciding(run).values.filter(Number.isFinite));
const lastStart = run => run.starts.at(-1) ?? {};
const meshOf = run => (lastStart(run).mesh || run.inputs?.mesh || '')
  .replaceAll(' x ', ' × ').replaceAll('=', ' ');

const longest = Math.max(...runs.map(run => run.clock.values.at(-1)));
const [timeUnit, secondsInUnit] = [['seconds', 1, 300], ['minutes', 60, 3 * 3600],
  ['hours', 3600, 72 * 3600], ['days', 86400, Infinity]].find(([, , limit]) => longest < limit);
/** Returns when a run had done a step: linear between the steps of its clock. */
const timeOf = ({clock: {steps, values}}, step) => {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle; else high = middle;
  }
  const share = (step - steps[low]) / (steps[high] - steps[low] || 1);
  return (values[low] + Math.min(1, Math.max(0, share)) * (values[high] - values[low]))
    / secondsInUnit;
};

// --- Which charts there are

const colors = ['blue', 'orange', 'green', 'purple', 'red', 'teal'];
const colorOf = i => colors[i % colors.length];
/** Returns a curve of `each` step, in which unknown values are gaps, or the `smooth` one. */
const curve = (run, kind, key, factor = 1) => {
  const {steps, [kind]: values = []} = of(run, key);
  const points = values.map((value, i) => [steps[i], value && value * factor])
    .filter(([, value]) => kind === 'each' || value !== null);
  return {run, steps: points.map(([step]) => step), values: points.map(([, value]) => value)};
};
const each = (key, label, color, factor) => ({label, color, ...curve(run, 'each', key, factor)});
const smooth = (key, label, color, factor) =>
  ({label, color, ...curve(run, 'smooth', key, factor)});
const both = (key, label, color, factor) => [
  {...each(key, `${label}, each step`, color, factor), look: 'faint'},
  smooth(key, `${label}, smoothed`, color, factor)];
/** Returns the unit of bytes that suits a chart of these quantities. */
const bytesUnit = keys => {
  const max = Math.max(0, ...runs.flatMap(run => keys.map(key => of(run, key).max ?? 0)));
  const unit = Math.max(1, unitOf(max / 4));
  return {name: units[unit], factor: 1024 ** -unit};
};

const chartsOfRun = () => {
  const marks = [
    {label: 'resumed from a checkpoint', color: 'soft', run, steps: run.resumes},
    {label: 'not finite: no update', color: 'red', run, steps: run.skipped},
    {label: 'spike', color: 'orange', run, steps: run.spikes}];
  const validation = run.validation.map(({set, ...losses}, i) => ({
    label: set ? `validation: ${set}` : 'validation', color: colorOf(i + 1), look: 'dots', run,
    ...losses}));
  const exposed = keysIn(run, 'exposed'), traffic = keysIn(run, 'traffic');
  const memory = bytesUnit(['memory.peak']), sent = bytesUnit(traffic);
  const charts = [
    {title: 'Loss', unit: 'nats per token', wide: true, mayBeLog: true, marks,
      curves: [...both('loss', 'training', 'blue'), ...validation]},
    {title: 'Throughput', unit: 'tokens/s over all ranks', fromZero: true,
      curves: both('tokens_per_second', 'tokens/s', 'blue')},
    {title: 'MFU', unit: '%', fromZero: true, curves: both('mfu', 'MFU', 'orange', 100)},
    {title: 'Step time', fromZero: true, wide: true, ...exposed.length
      ? {unit: 'seconds, mean over ranks, smoothed', curves: [
        smooth('seconds_compute', 'computing', 'blue'),
        ...exposed.map((key, i) => smooth(key, `waiting for ${nameOf(key)}`, colorOf(i + 1)))]}
      : {unit: 'seconds, slowest rank', curves: both('seconds', 'step', 'blue')}},
    {title: 'Memory', unit: `${memory.name} on the fullest rank`, fromZero: true, curves: [
      each('memory.peak', 'peak within a step', 'red', memory.factor),
      each('memory.valley', 'after a step', 'green', memory.factor)]},
    {title: 'Traffic', unit: `${sent.name} sent per rank and step`, fromZero: true,
      curves: traffic.map((key, i) => each(key, nameOf(key), colorOf(i), sent.factor))},
    {title: 'Gradient norm', unit: 'before clipping', fromZero: true, mayBeLog: true, marks,
      curves: both('grad_norm', 'norm', 'purple')},
    {title: 'Learning rate', fromZero: true, curves: [each('lr', 'learning rate', 'teal')]}];
  if (of(run, 'tokens_per_joule').max > 0)
    charts.push({title: 'Energy', unit: 'tokens per joule', fromZero: true,
      curves: both('tokens_per_joule', 'tokens/J', 'blue')});
  if (keysIn(run, 'experts').length)
    charts.push(
      {title: 'Expert load', unit: 'tokens relative to an equal share, smoothed', fromZero: true,
        curves: [smooth('experts.max_load', 'busiest expert of all layers', 'red'),
          smooth('experts.min_load', 'idlest', 'green'),
          smooth('experts.entropy', 'entropy of a layer, 1: even', 'blue')]},
      {title: 'Router losses', unit: 'without coefficients, smoothed', mayBeLog: true,
        curves: [smooth('experts.aux_loss', 'load balancing', 'purple'),
          smooth('experts.z_loss', 'z', 'orange')]});
  return charts;
};

/** Returns charts with a curve for each run. */
const chartsOfRuns = () => {
  const compared = (look, curveOf) => ({curves: runs.map((run, i) => ({
    label: run.name, color: colorOf(i), dashed: i >= colors.length, look, ...curveOf(run)}))});
  const all = (key, factor) => compared(undefined, run => curve(run, 'smooth', key, factor));
  const memory = bytesUnit(['memory.peak']);
  return [
    {title: 'Training loss', unit: 'nats per token, smoothed', wide: true, mayBeLog: true,
      ...all('loss')},
    {title: 'Validation loss', unit: 'nats per token', wide: true, mayBeLog: true,
      ...compared('dots', run => ({run, ...deciding(run)}))},
    {title: 'Throughput', unit: 'tokens/s over all ranks', fromZero: true,
      ...all('tokens_per_second')},
    {title: 'MFU', unit: '%', fromZero: true, ...all('mfu', 100)},
    {title: 'Peak memory', unit: `${memory.name} on the fullest rank`, fromZero: true,
      ...all('memory.peak', memory.factor)},
    {title: 'Step time', unit: 'seconds, slowest rank', fromZero: true, ...all('seconds')},
    {title: 'Gradient norm', unit: 'before clipping', fromZero: true, mayBeLog: true,
      ...all('grad_norm')},
    {title: 'Learning rate', fromZero: true, ...all('lr')}];
};

const charts = alone ? chartsOfRun() : chartsOfRuns();
const axes = {
  steps: {unit: 'step', of: (run, step) => step, whole: true},
  time: {unit: timeUnit, of: timeOf, whole: false}};
let layouts = [];  // in the order of the <svg>
const drawCharts = axis => {
  const drawn = charts.map(chart => drawChart(chart, axes[axis]));
  layouts = drawn.flatMap(chart => chart.layouts);
  return drawn.map(chart => chart.figure);
};

// --- The page around the charts

const row = (cells, cell) => html`<tr>${cells.map(cell)}</tr>`;
const table = (title, rows, head) => html`${title && html`<h2>${title}</h2>`}
  <div class="table"><table>${head && row(head, cell => html`<th>${cell}</th>`)}
  ${rows.map(cells => row(cells, cell => html`<td>${cell}</td>`))}</table></div>`;
const bar = share => html`<i class="bar" style="--share:${share.toFixed(3)}"></i>`;

const facts = () => {
  const {inputs} = run, {ranks} = lastStart(run);
  const model = inputs && [`${compact(inputs.parameters)} parameters`, `${inputs.layers} layers`,
    `hidden ${inputs.hidden}`, `heads ${inputs.heads}/${inputs.kv_heads}`,
    `vocabulary ${inputs.vocabulary}`];
  const all = [model, inputs?.strategy, ranks && counted(ranks, 'rank'), meshOf(run),
    inputs?.precision].flat().filter(fact => fact);
  return html`<p class="facts">${all.join(' · ')}</p>`;
};

const tiles = () => {
  const {loss, tokens, tokens_per_second, mfu, seconds, joules, tokens_per_joule} = run.metrics;
  const tile = (label, text, ...notes) => html`<div class="tile"><span>${label}</span>
    <b>${text}</b>${notes.map(note => html`<small>${note}</small>`)}</div>`;
  const {set, steps, values} = deciding(run);
  return html`<div class="tiles">
    ${steps.length ? tile('validation loss', lossText(values.at(-1)),
      `${set && `${set}, `}step ${steps.at(-1)}`, `best ${lossText(bestLoss(run))}`,
      run.early_stop && 'early stop') : tile('validation loss', '–', 'not evaluated')}
    ${tile('training loss', lossText(loss?.closing),
      run.span === 1 ? 'last step' : `mean of the last ${run.span}`)}
    ${tile('tokens', compact(tokens?.last), counted(run.step, 'step'))}
    ${tile('tokens/s', compact(tokens_per_second?.median), 'median step')}
    ${tile('MFU', percent(mfu?.median), 'median step')}
    ${tile('peak memory', bytes(of(run, 'memory.peak').max),
      `${bytes(of(run, 'memory.valley').max)} after a step`)}
    ${tile('time in steps', duration(seconds?.sum),
      `${counted(run.resumes.length, 'resume')}, ${counted(run.checkpoints, 'checkpoint')}`)}
    ${joules?.sum > 0 && tile('energy', `${compact(joules.sum / 3.6e6)} kWh`,
      `median ${compact(tokens_per_joule?.median)} tokens/J`)}</div>`;
};

const traffic = () => {
  const rows = keysIn(run, 'traffic').filter(key => of(run, key).last !== null).map(key =>
    [nameOf(key), bytes(of(run, key).last),
      bytes(of(run, `traffic_between_nodes.${nameOf(key)}`).last)]);
  return rows.length > 0 &&
    table('Traffic', rows, ['mesh axis', 'sent per rank and step', 'between nodes']);
};

const goodput = () => {
  const whole = run.goodput?.reduce((sum, [, seconds]) => sum + seconds, 0);
  return whole > 0 && table('Goodput: where the time of all starts went', run.goodput
    .map(([name, seconds]) => [name, seconds, seconds / whole])
    .map(([name, seconds, share]) => [name, duration(seconds), percent(share), bar(share)]));
};

const starts = () => run.starts.some(start => start.host) && table('Starts', run.starts.map(
  start => [start.step, date(start.time), start.ranks ?? '–', start.host, start.version]),
['after step', 'time', 'ranks', 'rank 0 on', 'llamesh']);

/** Lists the phases of the last start that recorded them, longest first. */
const phases = () => {
  const found = run.starts.findLast(start => start.phases.length)?.phases;
  found?.sort((a, b) => b[1] - a[1]);
  return found && table('Start-up, up to the end of the first step', found.map(
    ([name, seconds]) => [name, duration(seconds), bar(Math.max(0, seconds / found[0][1]) || 0)]));
};

const summary = () => table('', runs.map(run => [run.name, lastStart(run).ranks ?? '–',
  meshOf(run) || '–', run.step, lossText(of(run, 'loss').closing), lossText(bestLoss(run)),
  compact(of(run, 'tokens').last), compact(of(run, 'tokens_per_second').median),
  percent(of(run, 'mfu').median), bytes(of(run, 'memory.peak').max),
  duration(of(run, 'seconds').sum)]),
['run', 'ranks', 'mesh', 'step', 'training loss', 'best validation', 'tokens', 'tokens/s', 'MFU',
  'peak memory', 'time in steps']);

const inputs = () => differences.length === 0
  ? html`<h2>Inputs</h2><p class="none">no difference</p>`
  : table('Inputs that differ', differences.map(
    ({key, values}) => [key, ...values.map(value => value || '–')]),
  ['key', ...runs.map(run => run.name)]);

const notes = () => runs.filter(run => run.unreadable > 0).map(run => html`
  <p class="note">${run.name}: ${counted(run.unreadable, 'line')} of metrics.jsonl skipped: not a
    valid record.</p>`);

const figures = () => html`<form id="axes">x-axis:
  <label><input type="radio" name="x" value="steps" checked>steps</label>
  <label><input type="radio" name="x" value="time">wall-clock time (${timeUnit}), without pauses
    between starts</label></form><div class="charts">${drawCharts('steps')}</div>`;

const title = alone ? run.name : `${runs.length} runs`;
document.title = `${title} – llamesh`;
document.querySelector('main').innerHTML = html`<h1>${title}</h1>
  ${alone ? [facts(), tiles(), figures(), traffic(), goodput(), starts(), phases()]
    : [summary(), inputs(), figures()]}${notes()}
  ${run.config && html`
    <details><summary>config.yaml</summary><pre>${run.config}</pre></details>`}
  <div class="tip"></div>`.text;

// --- Time as x axis, and values under the pointer

const area = document.querySelector('.charts'), tip = document.querySelector('.tip');
document.getElementById('axes').addEventListener('change', event => {
  area.innerHTML = html`${drawCharts(event.target.value)}`.text;
});

const hide = () => {
  for (const shown of [tip, ...area.querySelectorAll('.guide')]) shown.style.display = 'none';
};
const short = value => String(Number(value.toPrecision(5)));
const show = (layout, svg, event) => {
  const box = svg.getBoundingClientRect();
  const x = (event.clientX - box.left) * layout.width / box.width;
  if (x < layout.left - 8 || x > layout.right + 8) return;
  const nearer = (a, b) => Math.abs(b.x - x) < Math.abs(a.x - x) ? b : a;
  const points = layout.curves
    .map(({points, ...curve}) => points.filter(point => point).map(point => ({...curve, ...point})))
    .filter(points => points.length).map(points => points.reduce(nearer));
  const nearest = points.reduce(nearer);
  tip.innerHTML = html`<b>step ${nearest.step} · ${short(timeOf(nearest.run, nearest.step))}
    ${timeUnit}</b>${points.filter(point => Math.abs(point.x - nearest.x) <= 40).map(point => html`
    <div style="--c:var(--${point.color})"><i></i><span>${point.label}
      ${point.step !== nearest.step && `(step ${point.step})`}</span>
      <em>${short(point.value)}</em></div>`)}`.text;
  const guide = svg.querySelector('.guide');
  guide.setAttribute('d', `M${px(nearest.x)} ${layout.top}V${layout.bottom}`);
  guide.style.display = tip.style.display = 'block';
  const {clientX, clientY} = event, {offsetWidth, offsetHeight} = tip;
  const fits = clientX + 16 + offsetWidth + 8 <= document.documentElement.clientWidth;
  tip.style.left = `${Math.max(8, fits ? clientX + 16 : clientX - offsetWidth - 16)}px`;
  tip.style.top = `${Math.max(8, Math.min(clientY + 12, innerHeight - offsetHeight - 8))}px`;
};
for (const kind of ['pointermove', 'pointerdown'])
  area.addEventListener(kind, event => {
    hide();
    const svg = event.target.closest('svg');
    if (svg) show(layouts[[...area.querySelectorAll('svg')].indexOf(svg)], svg, event);
  });
area.addEventListener('pointerleave', hide);
addEventListener('scroll', hide, {passive: true});
