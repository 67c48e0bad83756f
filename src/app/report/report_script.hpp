#pragma once

namespace llamesh::app {

/// Script for report.html: values under the pointer, and time instead of steps on the horizontal
/// axes. Without it the page shows the same curves over the steps. It reads the attributes that
/// chart.cpp writes, and the clocks in #clocks.
inline constexpr const char* report_script = R"js(
(() => {
  const clocks = JSON.parse(document.getElementById('clocks').textContent);
  const numbers = text => text ? text.split(' ').map(Number) : [];
  const timeOf = (run, step) => {
    const [steps, times] = clocks.runs[run];
    let low = 0, high = steps.length - 1;
    if (step <= steps[low]) return times[low];
    if (step >= steps[high]) return times[high];
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] <= step) low = middle; else high = middle;
    }
    return times[low] + (step - steps[low]) / (steps[high] - steps[low]) * (times[high] - times[low]);
  };
  const short = value => String(Number(value.toPrecision(5)));
  const make = (parent, name, kind) => {
    const made = name === 'line' ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
    made.setAttribute('class', kind);
    return parent.appendChild(made);
  };

  const charts = [...document.querySelectorAll('svg[data-plot]')].map(svg => {
    const [left, right, top, bottom] = numbers(svg.dataset.plot), [first, last] = numbers(svg.dataset.time);
    const atTime = (run, step) => left + (timeOf(run, step) - first) / (last - first) * (right - left);
    const series = [...svg.querySelectorAll('.series')].map(group => {
      const path = group.querySelector('path'), run = Number(group.dataset.run);
      const steps = numbers(group.dataset.x), values = numbers(group.dataset.y);
      const parts = (path.getAttribute('d').match(/[ML][^ML]+/g) || []).map(part => [part[0], ...numbers(part.slice(1))]);
      const byStep = parts.map(part => part[1]), byTime = steps.map(step => atTime(run, step));
      return {group, path, run, steps, values, parts, byStep, byTime, x: byStep};
    });
    const marks = [...svg.querySelectorAll('.mark')].map(line => ({line, byStep: line.getAttribute('x1'),
      byTime: atTime(0, Number(line.dataset.x))}));
    const guide = make(svg, 'line', 'guide');
    guide.setAttribute('y1', top);
    guide.setAttribute('y2', bottom);
    return {svg, left, right, series, marks, guide};
  });

  const show = axis => {
    document.body.classList.toggle('time', axis === 'byTime');
    for (const chart of charts) {
      for (const one of chart.series) {
        one.x = one[axis];
        one.path.setAttribute('d', one.parts.map((part, i) => part[0] + one.x[i].toFixed(1) + ' ' + part[2]).join(''));
        one.group.querySelectorAll('circle').forEach((circle, i) => circle.setAttribute('cx', one.x[i].toFixed(1)));
      }
      for (const mark of chart.marks)
        for (const end of ['x1', 'x2']) mark.line.setAttribute(end, mark[axis]);
    }
  };
  const choice = document.getElementById('axes');
  choice.hidden = false;
  choice.addEventListener('change', event => show(event.target.value));
  const chosen = choice.querySelector(':checked');
  if (chosen) show(chosen.value);

  const tip = make(document.body, 'div', 'tip');
  const hide = () => {
    tip.style.display = 'none';
    for (const chart of charts) chart.guide.style.display = 'none';
  };
  const nearest = (xs, x) => xs.reduce((best, at, i) => Math.abs(at - x) < Math.abs(xs[best] - x) ? i : best, 0);
  const point = (chart, event) => {
    const box = chart.svg.getBoundingClientRect(), scale = chart.svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, shown = chart.series.filter(one => one.x.length);
    if (!shown.length || x < chart.left - 8 || x > chart.right + 8) return hide();
    const found = shown.map(one => ({one, i: nearest(one.x, x)}));
    const closest = found.reduce((a, b) => Math.abs(b.one.x[b.i] - x) < Math.abs(a.one.x[a.i] - x) ? b : a);
    const step = closest.one.steps[closest.i], at = closest.one.x[closest.i];
    tip.textContent = '';
    make(tip, 'b', '').textContent = 'step ' + step + ' \u00b7 ' + short(timeOf(closest.one.run, step)) + ' ' + clocks.unit;
    for (const {one, i} of found) {
      if (Math.abs(one.x[i] - at) > 40) continue;
      const row = make(tip, 'div', '');
      make(row, 'i', '').style.background = getComputedStyle(one.group).getPropertyValue('--c');
      make(row, 'span', '').textContent = one.group.dataset.label + (one.steps[i] === step ? '' : ' (step ' + one.steps[i] + ')');
      make(row, 'em', '').textContent = short(one.values[i]);
    }
    chart.guide.setAttribute('x1', at);
    chart.guide.setAttribute('x2', at);
    chart.guide.style.display = 'block';
    tip.style.display = 'block';
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8, beside = event.clientX + 16;
    tip.style.left = Math.max(8, beside > room ? event.clientX - tip.offsetWidth - 16 : beside) + 'px';
    tip.style.top = Math.max(8, Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 8)) + 'px';
  };
  for (const chart of charts) {
    for (const kind of ['pointermove', 'pointerdown']) chart.svg.addEventListener(kind, event => { hide(); point(chart, event); });
    chart.svg.addEventListener('pointerleave', hide);
  }
  addEventListener('scroll', hide, {passive: true});
})();
)js";

}  // namespace llamesh::app
