"""How the page looks: by day and by night, on paper, and without anything that would have to be fetched."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --soft: #56646f; --paper: #ffffff; --line: #d5dce2;
  --a: #1f6fb2; --b: #b4540a;
  --c: #5b3fa0; --warn: #8a2c0d; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --soft: #a3b0bb; --paper: #12181e; --line: #33404b;
    --a: #69b1f0; --b: #f0a35e; --c: #b9a2f5; --warn: #ffb199; }
}
body { margin: 2rem auto; max-width: 60rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
svg { width: 100%; height: auto; } svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
.axis { stroke: var(--line); } .s0 { fill: var(--a); } .s1 { fill: var(--b); } .s2 { fill: var(--c); }
polyline { fill: none; stroke-width: 2; } .l0 { stroke: var(--a); } .l1 { stroke: var(--b); } .l2 { stroke: var(--c); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding: .3rem 0; }
th, td { text-align: right; padding: .2rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child, td.text { text-align: left; overflow-wrap: anywhere; }
.note { color: var(--soft); } .warn { color: var(--warn); } summary { cursor: pointer; color: var(--soft); }
"""
