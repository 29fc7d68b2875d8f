// The style sheet of `pariskv report`. Colours of series are those of Okabe and Ito, which people
// with any form of colour blindness tell apart, lighter on dark; shapes repeat what they say.
#pragma once

namespace pkv::cli {

inline constexpr const char* kReportStyle = R"css(
:root { color-scheme: light dark;
  --page: #ffffff; --panel: #f6f7f9; --text: #1a1f26; --soft: #566070; --grid: #e3e6eb;
  --axis: #8b95a3; --rule: #d5dae1; --accent: #0072b2;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #a8588c; --c4: #3d9fd6; --c5: #c98a00;
  --c6: #7a6a1e; --c7: #6b7280; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161c; --panel: #1a2029; --text: #e7ebf0; --soft: #a3adba; --grid: #2a323d;
  --axis: #66707e; --rule: #323b47; --accent: #5ab4f0;
  --c0: #4aa9ea; --c1: #ff8b4d; --c2: #2fc79b; --c3: #e49bc9; --c4: #9bd6f7; --c5: #f1b93a;
  --c6: #cdb960; --c7: #9aa4b2; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial,
    sans-serif; }
main { max-width: 1280px; margin: 0 auto; padding: 20px 16px 48px; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 2.6rem 0 .9rem; padding-top: .9rem;
  border-top: 1px solid var(--rule); }
h3 { font-size: 1.02rem; margin: 0; overflow-wrap: anywhere; }
p { margin: .2rem 0 .6rem; }
a { color: var(--accent); }
nav { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: .8rem 0 1.2rem; }
nav a { padding: .25rem 0; }
.lead, figcaption p, .note, dt { color: var(--soft); }
figcaption p { font-size: .9rem; overflow-wrap: anywhere; }
.sources { display: grid; gap: .8rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 380px), 1fr)); }
.source { background: var(--panel); border-radius: 8px; padding: .8rem 1rem; min-width: 0; }
.source h3 { margin-bottom: .3rem; }
dl { margin: 0; display: grid; grid-template-columns: auto 1fr; gap: .1rem .8rem;
  font-size: .88rem; }
dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
code { font: .86em/1.45 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.figures { display: grid; gap: 1.4rem 2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 520px), 1fr)); align-items: start; }
figure { margin: 0; min-width: 0; }
.plot { display: block; width: 100%; max-width: 640px; height: auto; }
.narrow { display: none; }
svg text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif;
  fill: var(--soft); }
svg .title { font-weight: 600; fill: var(--text); }
svg .label { fill: var(--text); }
svg .name { font-weight: 600; fill: var(--c, var(--soft)); }
svg .halo { stroke: var(--page); stroke-width: 3px; paint-order: stroke; }
svg .cell { text-anchor: middle; font-size: 11.5px; fill: #101418; }
svg .cell.pale { fill: #ffffff; }
.grid { stroke: var(--grid); fill: none; }
.axis { stroke: var(--axis); fill: none; }
.line { stroke: var(--c); stroke-width: 1.8; fill: none; stroke-linejoin: round; }
.line.strong { stroke-width: 3; }
.line.other { stroke-dasharray: 6 4; }
.bound { stroke: var(--soft); stroke-width: 1.3; stroke-dasharray: 2 4; fill: none; }
.range { stroke: var(--c); stroke-width: 5; opacity: .28; fill: none; }
.point { fill: var(--c); stroke: var(--page); stroke-width: 1; }
.point.other, .bar.other { fill: var(--page); stroke: var(--c); stroke-width: 1.8; }
.point.faint { opacity: .42; }
.bar { fill: var(--c); }
.c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); }
.c4 { --c: var(--c4); } .c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }
.legend { list-style: none; margin: .3rem 0 0; padding: 0; display: flex; flex-wrap: wrap;
  gap: .15rem 1rem; font-size: .85rem; }
.legend li { display: flex; align-items: center; gap: .4rem; min-width: 0;
  overflow-wrap: anywhere; }
.key { width: 26px; height: 12px; flex: none; }
details { margin: 1rem 0 0; }
summary { cursor: pointer; font-weight: 600; padding: .35rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .6rem; text-align: right; border-bottom: 1px solid var(--grid);
  vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child { padding-left: 0; }
th { color: var(--soft); font-weight: 600; border-bottom-color: var(--axis); }
.left { text-align: left; white-space: normal; min-width: 7.5rem; overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .85rem; }
@media (max-width: 519px) { .wide { display: none; } .narrow { display: block; }
  main { padding: 14px 14px 40px; } .left { min-width: 4.5rem; }
  h1 { font-size: 1.4rem; } h2 { margin-top: 2rem; } }
@media print { figure, tr { break-inside: avoid; } nav { display: none; } }
)css";

}  // namespace pkv::cli
