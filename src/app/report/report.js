// Fills <main> with the report. #data has what page_data.cpp writes: {runs, differences, refresh}.
// A run's metrics are by their keys in metrics.jsonl; of many steps, their curves have some.

const {runs, differences, refresh} = JSON.parse(document.getElementById('data').textContent);
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
/** Returns a curve's value at a step: linear between the steps that it has. */
const valueAt = ({steps, values}, step) => {
  let low = 0, high = steps.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (steps[middle] <= step) low = middle; else high = middle;
  }
  const share = (step - steps[low]) / (steps[high] - steps[low] || 1);
  return values[low] + Math.min(1, Math.max(0, share)) * (values[high] - values[low]);
};
/** Returns when a run had done a step. */
const timeOf = (run, step) => valueAt(run.clock, step) / secondsInUnit;
const tokensOf = (run, step) => valueAt(run.tokens, step);

// --- Which charts there are

const colors = ['blue', 'orange', 'green', 'purple', 'red', 'teal'];
const colorOf = i => colors[i % colors.length];
const dashOf = i => ['', 'dashed', 'dotted', 'mixed'][Math.floor(i / colors.length) % 4];
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
/** Returns a curve for each layer, from blue to orange, after those of other parts. */
const byLayer = group => {
  const keys = keysIn(run, group).sort((a, b) => a.localeCompare(b, 'en', {numeric: true}));
  const layers = keys.filter(key => /\.\d+$/.test(key));
  const others = keys.filter(key => !layers.includes(key));
  return [...others.map((key, i) => ({...smooth(key, nameOf(key), colorOf(i + 2)), dash: 'dashed'})),
    ...layers.map((key, i) => ({
      ...smooth(key, nameOf(key), `depth${Math.round(7 * i / (layers.length - 1 || 1))}`),
      unlisted: i > 0 && i < layers.length - 1}))];
};
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
    {title: 'MFU and utilization', unit: '%', fromZero: true, curves: [
      ...both('mfu', 'MFU', 'orange', 100),
      smooth('utilization', 'busy devices, smoothed', 'green', 100)]},
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
    {title: 'Learning rate', fromZero: true, curves: [
      each('lr', of(run, 'lr_muon').steps ? 'AdamW' : 'learning rate', 'teal'),
      ...of(run, 'lr_muon').steps ? [each('lr_muon', 'Muon', 'orange')] : []]}];
  if (keysIn(run, 'layer_grad_norm').length)
    charts.push(
      {title: 'Gradient norm by layer', unit: 'before clipping', wide: true, mayBeLog: true,
        curves: byLayer('layer_grad_norm')},
      {title: 'Weight norm by layer', unit: '', wide: true, mayBeLog: true,
        curves: byLayer('layer_weight_norm')});
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
    label: run.name, color: colorOf(i), dash: dashOf(i), look, ...curveOf(run)}))});
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
  steps: {unit: 'step', of: (run, step) => step, whole: true, label: 'steps'},
  tokens: {unit: 'tokens', of: tokensOf, whole: true, label: 'tokens'},
  time: {unit: timeUnit, of: timeOf, whole: false,
    label: `wall-clock time (${timeUnit}), without pauses between starts`}};
if (runs.some(run => run.tokens.values.includes(null))) delete axes.tokens;

// The view is kept in the page's address, so that reloading keeps it and a link shows it.
const asked = new URLSearchParams(location.hash.slice(1));
const numbersIn = text => (text ?? '').split(',').map(Number).filter(Number.isFinite);
const zoomed = numbersIn(asked.get('range'));
const view = {
  axis: Object.hasOwn(axes, asked.get('x')) ? axes[asked.get('x')] : axes.steps,
  range: zoomed.length === 2 && zoomed[0] < zoomed[1] ? zoomed : null,
  smoothing: numbersIn(asked.get('smoothing'))[0] ?? 0,
  logs: new Map(['log', 'linear'].flatMap(scale =>
    asked.getAll(scale).map(title => [title, scale === 'log'])))};
const keepView = () => {
  const {axis, range, smoothing, logs} = view, kept = new URLSearchParams();
  if (axis !== axes.steps) kept.set('x', Object.keys(axes).find(name => axes[name] === axis));
  if (range) kept.set('range', range.join());
  if (smoothing) kept.set('smoothing', smoothing);
  for (const [title, log] of logs) kept.append(log ? 'log' : 'linear', title);
  history.replaceState(null, '', `#${kept}`);
};
let layouts = [];  // in the order of the <svg>
const drawCharts = view => {
  const drawn = charts.map(chart => drawChart(chart, view));
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
  return html`<p class="facts">${all.join(' · ')}</p>
    ${inputs?.notes && html`<p class="notes">${inputs.notes}</p>`}
    ${inputs?.tags.length > 0 && html`<p class="tags">${inputs.tags.map(tag =>
      html`<span>${tag}</span> `)}</p>`}`;
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

/** Shows what the model wrote at the latest validations, the newest first, by prompt. */
const samples = () => {
  const steps = run.samples.toReversed();
  const prompts = [...new Set(steps.flatMap(({texts}) => texts.map(({prompt}) => prompt)))];
  return prompts.length > 0 && html`<h2>Samples</h2>${prompts.map(prompt => html`
    <details open><summary>${prompt}</summary>${table('', steps.flatMap(({step, texts}) => texts
      .filter(sample => sample.prompt === prompt)
      .map(({text}) => [`step ${step}`, html`<span class="text">${text}</span>`])))}</details>`)}`;
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
  start => [start.step, date(start.time), start.job || '–', start.ranks ?? '–', start.host,
    `${start.version} ${start.commit}`, html`<code>${start.command}</code>`]),
['after step', 'time', 'job', 'ranks', 'rank 0 on', 'llamesh', 'command']);

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

const figures = () => html`<form id="view">x-axis:
  ${Object.entries(axes).map(([name, axis]) => html`<label><input type="radio" name="x"
    value="${name}" ${axis === view.axis && 'checked'}>${axis.label}</label>`)}
  <label class="smoothing">smoothing over <input type="range" name="smoothing" min="0" max="20"
    value="${100 * view.smoothing}"><output></output></label>
  <button type="button" name="whole">whole run</button>
  <small>drag across a chart to zoom</small></form>
  <div class="charts"></div>`;

const title = alone ? run.name : `${runs.length} runs`;
document.title = `${title} – llamesh`;
document.querySelector('main').innerHTML = html`<h1>${title}</h1>
  ${alone ? [facts(), tiles(), figures(), samples(), traffic(), goodput(), starts(), phases()]
    : [summary(), inputs(), figures()]}${notes()}
  ${run.config && html`
    <details><summary>config.yaml</summary><pre>${run.config}</pre></details>`}
  <div class="tip"></div>`.text;

// --- What the reader chooses

const area = document.querySelector('.charts'), tip = document.querySelector('.tip');
const form = document.getElementById('view');
const draw = () => {
  area.innerHTML = html`${drawCharts(view)}`.text;
  form.elements.whole.hidden = !view.range;
  form.querySelector('output').value = `${(100 * view.smoothing).toFixed(0)} %`;
};
const change = changes => {
  Object.assign(view, changes);
  keepView();
  draw();
};
form.addEventListener('input', ({target: {name, value}}) => {
  if (name === 'x') change({axis: axes[value], range: null});
  if (name === 'smoothing') change({smoothing: value / 100});
});
form.elements.whole.addEventListener('click', () => change({range: null}));
area.addEventListener('dblclick', () => change({range: null}));
area.addEventListener('click', ({target: {dataset: {title, log}}}) => {
  if (title) change({logs: view.logs.set(title, log === 'log')});
});
draw();
if (refresh) setTimeout(() => location.reload(), 1000 * refresh);

// --- Values under the pointer, and a part to enlarge

const layoutOf = svg => layouts[[...area.querySelectorAll('svg')].indexOf(svg)];
/** Returns where the pointer is in a drawing, along x or y. */
const placeIn = (svg, {clientX, clientY}, along = 'x') => {
  const box = svg.getBoundingClientRect();
  return (along === 'x' ? clientX - box.left : clientY - box.top)
    * layoutOf(svg).width / box.width;
};
let dragged = null;  // {svg, from, to}
area.addEventListener('pointerdown', event => {
  const svg = event.target.closest('svg');
  if (!svg || event.button !== 0 || event.pointerType === 'touch') return;  // which scrolls
  event.preventDefault();  // selects no text
  const from = placeIn(svg, event);
  dragged = {svg, from, to: from};
});
addEventListener('pointermove', event => {
  if (!dragged) return;
  const {svg, from} = dragged, {left, right} = layoutOf(svg);
  const within = x => Math.min(right, Math.max(left, x));
  dragged.to = within(placeIn(svg, event));
  const shown = svg.querySelector('.range'), begin = Math.min(within(from), dragged.to);
  shown.setAttribute('x', px(begin));
  shown.setAttribute('width', px(Math.max(within(from), dragged.to) - begin));
});
addEventListener('pointerup', () => {
  if (!dragged) return;
  const {svg, from, to} = dragged, {left, right, xs} = layoutOf(svg);
  dragged = null;
  if (Math.abs(to - from) < 8) return;  // a click
  const valueOf = x => linear([left, right], ...xs)(Math.min(right, Math.max(left, x)));
  change({range: [valueOf(Math.min(from, to)), valueOf(Math.max(from, to))]});
});

const hide = () => {
  for (const shown of [tip, ...area.querySelectorAll('.guide')]) shown.style.display = 'none';
};
const short = value => String(Number(value.toPrecision(5)));
const maxRows = 12;
/** Leaves out the points farthest from the pointer if there are many. */
const nearestRows = (points, y) => {
  const distances = points.map(point => Math.abs(point.y - y)).sort((a, b) => a - b);
  return points.filter(point => !(Math.abs(point.y - y) > distances[maxRows - 1]));
};
const show = (layout, svg, event) => {
  const x = placeIn(svg, event);
  if (x < layout.left - 8 || x > layout.right + 8) return;
  const nearer = (a, b) => Math.abs(b.x - x) < Math.abs(a.x - x) ? b : a;
  const points = layout.curves
    .map(({points, ...curve}) => points.filter(point => point).map(point => ({...curve, ...point})))
    .filter(points => points.length).map(points => points.reduce(nearer));
  const nearest = points.reduce(nearer);
  const rows = points.filter(point => Math.abs(point.x - nearest.x) <= 40);
  const y = placeIn(svg, event, 'y');
  tip.innerHTML = html`<b>step ${nearest.step} · ${short(timeOf(nearest.run, nearest.step))}
    ${timeUnit}</b>${nearestRows(rows, y).map(point => html`
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
    if (svg) show(layoutOf(svg), svg, event);
  });
area.addEventListener('pointerleave', hide);
addEventListener('scroll', hide, {passive: true});
