// Runs the report's script without a browser: node report_page.js LLAMESH. Checks what only the
// script computes; tests/app/report_test.cpp checks the data that it gets.
'use strict';
const assert = require('node:assert'), fs = require('node:fs'), path = require('node:path');
const {execFileSync} = require('node:child_process'), vm = require('node:vm');

const [, , llamesh] = process.argv;
const folder = fs.mkdtempSync(path.join(require('node:os').tmpdir(), 'report-'));
process.on('exit', () => fs.rmSync(folder, {recursive: true}));

const step = (step, loss, more = {}) => ({step, loss, grad_norm: 1.5, lr: 0.001, tokens: 512 * step,
  seconds: 0.5, tokens_per_second: 1234567, mfu: 0.25, memory: {valley: 5242880, peak: 8388608},
  traffic: {shard: 1048576}, traffic_between_nodes: {shard: 524288}, ...more});
const steps = (count, loss) => Array.from({length: count}, (_, i) => step(i + 1, loss(i + 1)));

/** Returns what the page of these runs shows in <main>, run(code) to run more in it, input(name,
 * value) for what a reader chooses, and the page's address. `hash` is the address it is opened
 * with. */
const openAt = (hash, ...runs) => {
  const folders = runs.map((lines, i) => {
    const run = path.join(folder, `run${i}`);
    fs.mkdirSync(run, {recursive: true});
    fs.writeFileSync(path.join(run, 'metrics.jsonl'), lines.map(line =>
      typeof line === 'string' ? line : `${JSON.stringify(line)}\n`).join(''));
    return run;
  });
  const page = execFileSync(llamesh, ['report', ...folders, '--output', '-']).toString();
  const [, data, script] = page.match(/id="data">(.*)<\/script>\n<script>\n(.*)<\/script>/s);
  const element = () => ({listeners: {}, addEventListener(event, listener) {
    this.listeners[event] = listener;
  }});
  const main = element(), charts = element(), output = element();
  const form = {...element(), elements: {whole: element()}, querySelector: () => output};
  const document = {
    getElementById: id => id === 'data' ? {textContent: data} : form,
    querySelector: selector => ({main, '.charts': charts})[selector] ?? element()};
  const location = {hash}, timers = [];
  const context = vm.createContext({document, location, URLSearchParams, addEventListener() {},
    setTimeout: (_, milliseconds) => timers.push(milliseconds),
    history: {replaceState(state, unused, address) { location.hash = address; }}});
  vm.runInContext(script, context);
  return {get main() { return main.innerHTML + charts.innerHTML; }, title: document.title,
    run: code => vm.runInContext(code, context), location, timers, whole: form.elements.whole,
    input: (name, value) => form.listeners.input({target: {name, value}}),
    click: (title, log) => charts.listeners.click({target: {dataset: {title, log}}})};
};
const open = (...runs) => openAt('', ...runs);
const count = (text, part) => text.split(part).length - 1;
const has = (text, ...parts) => {
  for (const part of parts) assert(text.includes(part), part);
};

const tests = {
  'shows headlines, charts and tables'() {
    const {main, title} = open([
      {event: 'start', step: 0, time: 1763861810, host: 'node7', ranks: 6, version: '0.1.9',
        mesh: 'replicate=2 x shard=3'}, ...steps(50, i => 5 - 0.05 * i),
      {event: 'startup', step: 1, phases: {MPI_Init: 2.5, 'first step': 75}},
      {event: 'validation', step: 50, loss: 2.71828, set: 'wiki'},
      {event: 'early_stop', step: 50}]);
    assert.equal(title, 'run0 – llamesh');
    has(main, '6 ranks · replicate 2 × shard 3', '2.7183', 'wiki, step 50', 'early stop', '1.23M',
      '25.0 %', '8.0 MiB', '5.0 MiB after a step', '<td>1.0 MiB</td><td>512.0 KiB</td>', 'node7',
      '2025-11-23 01:36 UTC', '<td>1 min 15 s</td>', 'validation: wiki',
      'KiB sent per rank and step');
    assert.equal(count(main, '<figure'), 8);
    assert.equal(count(main, '<svg'), 10, 'the wide ones also for narrow screens');
    assert.equal(count(main, 'nothing recorded'), 0);
  },

  'draws no impossible coordinates'() {
    const losses = [[null], ['text', null, 1], [1e308, -1e308, 0], [0, 0], [1e-300]];
    const runs = losses.map(values => values.map((loss, i) => step(i + 1, loss)));
    for (const lines of [...runs, [{step: 7}], [{step: 1, loss: 1e15}, {step: 2, lr: -1e-9}]]) {
      const {main, run} = open(lines);
      for (const drawn of [main, run("html`${drawCharts({...view, axis: axes.time})}`.text")])
        for (const wrong of ['NaN', 'Infinity', 'undefined', 'null'])
          assert.equal(count(drawn, wrong), 0, `${wrong} for ${JSON.stringify(lines)}`);
    }
    assert.equal(count(open([{step: 7}]).main, 'nothing recorded'), 8);
  },

  'escapes the text of a run'() {
    const hostile = '</script><img onerror="alert(1)">\'&';
    const {main, run} = open([
      {event: 'start', step: 0, host: hostile, mesh: hostile, version: hostile},
      step(1, 5, {traffic: {[hostile]: 5}, exposed: {[hostile]: 5}, experts: {[hostile]: 1}}),
      {event: 'startup', step: 1, phases: {[hostile]: 1}},
      {event: 'validation', step: 1, loss: 2, set: hostile}]);
    for (const drawn of [main, run("html`${drawCharts({...view, axis: axes.time})}`.text")])
      for (const part of ['<img', '</script', '"alert']) assert.equal(count(drawn, part), 0, part);
    has(main, '&#60;img onerror=&#34;alert(1)&#34;&#62;&#39;&#38;');
  },

  'tells notes, tags, commands and the rate of each optimizer'() {
    const {main} = open([{event: 'start', step: 0, host: 'node7', version: '0.1.9', job: '4711',
      commit: '0123456789abcdef', command: 'llamesh train a.yaml'}, step(1, 5, {lr_muon: 0.02})]);
    has(main, '<td>4711</td>', '0.1.9 0123456789abcdef</td>', '<code>llamesh train a.yaml</code>',
      'AdamW</span>', 'Muon</span>');
  },

  'marks steps in the charts of loss, which is drawn twice, and gradient norm'() {
    const {main} = open([step(1, 5), step(2, null), {event: 'skipped', step: 2}, step(3, 4),
      step(4, 9), {event: 'spike', step: 4}]);
    assert.equal(count(main, '<path class="mark" style="--c:var(--red)"'), 3);
    assert.equal(count(main, '<path class="mark" style="--c:var(--orange)"'), 3);
    assert.equal(count(main, 'not finite: no update</span>'), 2);
    assert.equal(count(main, 'resumed from'), 0);
  },

  'has a logarithmic scale where a linear one shows little'() {
    const isLog = loss => count(open(steps(100, loss)).main, 'nats per token, logarithmic') === 1;
    assert(!isLog(i => 10 - 0.07 * i));
    assert(isLog(i => 10 * 0.9 ** i));
    assert(isLog(i => i === 50 ? 40 : 3), 'a spike');
    assert(!isLog(i => i === 50 ? 0 : 3), 'a step without targets');
  },

  'connects smoothed values over steps without one'() {
    const {run} = open(steps(9, i => i % 2 ? null : i));
    assert.equal(run("curve(runs[0], 'smooth', 'loss').steps.join()"), '2,4,6,8');
    assert.equal(run("curve(runs[0], 'each', 'loss', 2).values.join()"), ',4,,8,,12,,16,');
  },

  'shows what the reader chooses, and keeps it in the address'() {
    const page = open(steps(100, i => i === 50 ? 40 : 3 - 0.01 * i));
    has(page.main, '>step</text>', 'nats per token, logarithmic');
    assert(page.whole.hidden);
    page.click('Loss', '');
    page.input('x', 'tokens');
    page.input('smoothing', '10');
    assert.equal(page.location.hash, '#x=tokens&smoothing=0.1&linear=Loss');
    assert.equal(count(page.main, 'nats per token, logarithmic'), 0);
    has(page.main, '>tokens</text>', '>50K</text>');
    page.run('change({range: [10 * 512, 20 * 512]})');
    assert(!page.whole.hidden);
    const again = openAt(page.location.hash, steps(100, i => i === 50 ? 40 : 3 - 0.01 * i));
    assert.equal(again.main.split('<div class="charts">')[1], page.main.split('<div class="charts">')[1]);
    assert.equal(count(again.main, '>50K</text>'), 0);
    has(again.main, '>10K</text>');
    page.input('x', 'steps');
    assert.equal(page.location.hash, '#smoothing=0.1&linear=Loss');
    // An address by hand does no harm.
    for (const hash of ['#x=no&range=5&smoothing=text', '#range=9,3', '#x=constructor', '#log=No'])
      assert.equal(count(openAt(hash, steps(3, () => 5)).main, 'NaN'), 0, hash);
  },

  'draws enlarged parts from what it has of them'() {
    const {run} = open(steps(10000, i => i === 5001 ? 9 : 3 + i % 2));
    const pointsIn = range => JSON.parse(run(`JSON.stringify(drawable(pointsIn(
      each('loss', '', ''), {...view, range: ${range}}, false)).map(point => point.value))`));
    assert.equal(pointsIn('null').length, 800);
    assert(pointsIn('null').includes(9));
    const part = pointsIn('[4500, 5500]');
    assert(part.length > 350 && part.length < 450 && part.includes(9), part.length);
    assert.equal(pointsIn('[5000.5, 5001.5]').join(), '9');
  },

  'smooths without lag, gaps or widened spikes'() {
    const {run} = open([step(1, 5)]);
    const smooth = (values, reach) => JSON.parse(run(`JSON.stringify(smoothedOver(${reach},
      {steps: ${JSON.stringify(values.map((_, i) => i + 1))}, values: ${JSON.stringify(values)}}))`));
    assert.deepEqual(smooth([1, 2, 6, 2, 1], 1), [1, 3, 10 / 3, 3, 1]);
    assert.deepEqual(smooth([1, null, 3, 5, null], 1), [1, null, 4, 5, null]);
    const noisy = Array.from({length: 90}, (_, i) => i === 40 ? 50 : 3 + i % 2);
    const line = smooth(noisy, 10);
    assert.equal(line[40], 50);
    assert(line.every((value, i) => i === 40 || i < 5 || i > 84 || Math.abs(value - 3.5) < 0.11));
  },

  'compares runs'() {
    const {main, title} = open(steps(2, () => 5), [step(1, 6),
      {event: 'validation', step: 1, loss: 3.5}, '{"torn\n']);
    assert.equal(title, '2 runs – llamesh');
    has(main, 'run0</span>', 'run1</span>', '<td>3.5000</td>', 'no difference',
      'run1: 1 line of metrics.jsonl skipped');
    assert.equal(count(main, '<figure'), 8);
  },

  'computes times, ticks and their labels'() {
    const {run} = open([step(1, 5), step(3, 4), step(7, 3)]);
    const equal = (code, wanted) =>
      assert.equal(JSON.stringify(run(code)), JSON.stringify(wanted), code);
    equal('[0, 1, 2, 3, 5, 9].map(step => timeOf(runs[0], step))', [0.5, 0.5, 0.75, 1, 1.25, 1.5]);
    equal('niceTicks(0, 10, 5)', [0, 2, 4, 6, 8, 10]);
    equal('niceTicks(-3, 3, 3)', [-2, 0, 2]);
    equal('niceTicks(1, 1, 5)', []);
    equal('niceTicks(1e18, 1e18 + 256, 5)', []);  // their distance is lost in them
    equal('logTicks(0.3, 12)', [0.5, 1, 2, 5, 10]);
    equal('tickTexts(niceTicks(0.13, 0.61, 5), 0.1)', ['0.2', '0.3', '0.4', '0.5', '0.6']);
    equal('tickTexts([0, 0.00015, 0.0003], 0.00015)', ['0', '1.5e-4', '3e-4']);
    equal('tickTexts([0, 200000, 400000], 200000)', ['0', '200K', '400K']);
    equal('[5, 26960, 999999, 8030261248].map(compact)', ['5', '27K', '1M', '8.03B']);
    equal('[9.5, 150, 11100].map(duration)', ['9.5 s', '2 min 30 s', '3 h 5 min']);
  },
};
for (const [name, test] of Object.entries(tests)) {
  test();
  console.log(`ok: ${name}`);
}
