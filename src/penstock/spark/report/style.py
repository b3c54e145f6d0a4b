"""How the page looks: by day and by night, on paper, and without anything that would have to be fetched."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #56646f; --paper: #ffffff; --line: #d5dce2; --tile: #f4f7f9;
  --a: #1f6fb2; --b: #b4540a; --c: #5b3fa0; --warn: #8a2c0d; --warn-tile: #fdf1ec; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --soft: #a3b0bb; --paper: #12181e; --line: #33404b; --tile: #1a232b;
    --a: #69b1f0; --b: #f0a35e; --c: #b9a2f5; --warn: #ffb199; --warn-tile: #2b1c17; }
}
body { margin: 2rem auto; max-width: 64rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1, h2 { line-height: 1.2; overflow-wrap: anywhere; } h1 { margin-bottom: .2rem; }
h2 { margin-top: 2.5rem; padding-bottom: .2rem; border-bottom: 1px solid var(--line); }
.when { margin-top: 0; color: var(--soft); }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.5rem 0; padding: 0; list-style: none; }
.tiles li { flex: 1 1 9rem; padding: .7rem 1rem; border-radius: .4rem; background: var(--tile); color: var(--soft); }
.tiles strong { display: block; color: var(--ink); font-size: 1.5rem; line-height: 1.3;
  font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.axis { stroke: var(--line); } .s0 { fill: var(--a); } .s1 { fill: var(--b); } .s2 { fill: var(--c); }
polyline { fill: none; stroke-width: 2; } .l0 { stroke: var(--a); } .l1 { stroke: var(--b); } .l2 { stroke: var(--c); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding: .3rem 0; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top;
  white-space: nowrap; }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; white-space: normal; }
th:first-child { text-align: left; padding-left: 0; }
tbody th { min-width: 2.5rem; max-width: 20rem; white-space: normal; overflow-wrap: break-word; }
th.text, td.text { text-align: left; } td.text { min-width: 5rem; max-width: 17rem; white-space: pre-line;
  overflow-wrap: break-word; }
.note { color: var(--soft); } summary { cursor: pointer; color: var(--soft); }
.warn { padding: .5rem .8rem; border-left: 3px solid var(--warn); background: var(--warn-tile); color: var(--warn); }
@media (max-width: 40rem) { body { margin: 1rem auto; } svg text { font-size: 19px; } .inner { display: none; }
  tbody th { min-width: 6rem; } }
@media print { body { max-width: none; } .scroll { overflow: visible; } section { break-inside: avoid-page; } }
"""
