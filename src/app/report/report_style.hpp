#pragma once

namespace llamesh::app {

/// Style sheet for report.html. Charts name their colors by these custom properties.
inline constexpr const char* report_style = R"css(
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1c2330; --soft: #5b6577;
  --line: #e3e7ee; --blue: #2563b8; --orange: #d9660b; --red: #c43c4e; --green: #2c8a57;
  --purple: #7a4fbf; --teal: #0f8291; }
@media (prefers-color-scheme: dark) { :root { --page: #12161d; --card: #1a2029; --ink: #e6eaf1;
  --soft: #98a3b6; --line: #2c3543; --blue: #6ea8f5; --orange: #f7a04b; --red: #f07a89;
  --green: #62c48f; --purple: #b18cf0; --teal: #52c4d2; } }
@media print { :root { color-scheme: light; --page: #fff; --card: #fff; --ink: #1c2330; --soft: #5b6577;
  --line: #dfe3ea; --blue: #2563b8; --orange: #d9660b; --red: #c43c4e; --green: #2c8a57;
  --purple: #7a4fbf; --teal: #0f8291; } figure, .tile { break-inside: avoid; } details { display: none; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1140px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { margin: 0; font-size: 26px; } h2 { margin: 28px 0 8px; font-size: 17px; }
.facts { margin: 2px 0 20px; color: var(--soft); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; }
.tile, figure { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.tile { padding: 10px 14px; } .tile span, .tile small { display: block; color: var(--soft); font-size: 12px; }
.tile b { font-size: 19px; font-variant-numeric: tabular-nums; white-space: nowrap; }
.charts { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 12px; margin-top: 12px; }
figure { margin: 0; padding: 12px 16px 10px; } figure.wide { grid-column: 1 / -1; }
@media (max-width: 760px) { .charts { grid-template-columns: minmax(0, 1fr); } }
figcaption small { color: var(--soft); margin-left: 4px; }
svg { display: block; width: 100%; height: auto; margin: 6px 0 2px; }
svg path { fill: none; } .grid { stroke: var(--line); } .axis { stroke: var(--soft); }
.mark { stroke: var(--c); stroke-width: 1; stroke-dasharray: 4 4; }
.tick { fill: var(--soft); font-size: 12px; font-variant-numeric: tabular-nums; }
.strong { stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
.faint { stroke: var(--c); stroke-width: 1; opacity: .35; } .thin { stroke: var(--c); stroke-width: 1.2; }
circle { fill: var(--c); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; color: var(--soft); font-size: 12.5px; padding-left: 4px; }
.legend i { display: inline-block; width: 16px; height: 0; border-top: 2.5px solid var(--c);
  margin-right: 6px; vertical-align: middle; }
.legend i.pale { opacity: .4; } .legend i.dashed { border-top-style: dashed; } .legend i.dash { border-top: 1.5px dashed var(--c); }
.legend i.dot { width: 8px; height: 8px; border: 0; border-radius: 50%; background: var(--c); }
table { border-collapse: collapse; } th, td { text-align: left; padding: 4px 24px 4px 0;
  border-bottom: 1px solid var(--line); font-weight: normal; } th { color: var(--soft); }
th:not(:last-child), td:not(:last-child) { white-space: nowrap; } td { vertical-align: top; } th:last-child, td:last-child { min-width: 96px; }
.table { overflow-x: auto; } .bar { display: inline-block; height: 9px; width: calc(var(--share) * min(160px, 20vw)); background: var(--blue); border-radius: 2px; }
#axes { margin: 18px 0 0; color: var(--soft); font-size: 13px; } #axes label { margin: 0 4px; cursor: pointer; }
#axes + .charts { margin-top: 8px; } #axes input { vertical-align: -2px; margin: 0 4px 0 0; accent-color: var(--blue); }
.by-time, .time .by-step { display: none; } .time .by-time { display: inline; }
.dashed { stroke-dasharray: 6 3; } svg { touch-action: pan-y; }
.narrow { display: none; }
@media (max-width: 760px) { .broad { display: none; } .narrow { display: block; } svg { overflow: visible; } .tick { font-size: 17px; }
  main { padding: 20px 12px; } figure { padding: 12px 12px 10px; } th, td { padding-right: 14px; }
  .strong { stroke-width: 3; } .thin { stroke-width: 2; } circle { r: 4.5px; } }
.guide { display: none; stroke: var(--soft); stroke-width: 1; pointer-events: none; }
.tip { display: none; position: fixed; z-index: 1; pointer-events: none; background: var(--card); border: 1px solid var(--soft);
  border-radius: 6px; padding: 6px 10px; font-size: 12.5px; box-shadow: 0 2px 8px #0003; max-width: calc(100vw - 16px); }
.tip div { display: flex; align-items: center; gap: 7px; } .tip i { flex: none; width: 9px; height: 9px; border-radius: 50%; }
.tip em { margin-left: auto; padding-left: 12px; font-style: normal; font-variant-numeric: tabular-nums; }
.none { color: var(--soft); } .note, details { color: var(--soft); margin-top: 20px; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 12px;
  overflow-x: auto; font-size: 12.5px; }
)css";

}  // namespace llamesh::app
