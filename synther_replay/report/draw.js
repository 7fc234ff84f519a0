"use strict";
const TOUCH = matchMedia("(pointer: coarse)").matches;

// Drawing: a chart's values to Plotly's traces and layout. Colours come from the style sheet, so that both schemes agree.

function theme() {
  const style = getComputedStyle(document.documentElement);
  const names = ["text", "faint", "grid", "real", "area", "synthetic", "fill", "band", "low", "middle", "high"];
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
}

// Plotly reads some tags in texts; a name is never a tag.
function plain(name) {
  return String(name).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function shortened(name, most) {
  return plain(name.length > most ? name.slice(0, most - 1) + "\u2026" : name);
}

function shares(counts) {
  const total = counts.reduce((sum, count) => sum + count, 0) || 1;
  return counts.map((count) => count / total);
}

function added(one, other) {
  return one.map((count, place) => count + other[place]);
}

function layoutOf(colours, title, more) {
  const axis = { gridcolor: colours.grid, zerolinecolor: colours.grid, linecolor: colours.grid, automargin: true };
  const size = { family: "system-ui, sans-serif", size: 12, color: colours.text };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: size, margin: { l: 48, r: 8, t: 8, b: 40 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" }, hovermode: "x unified",
    hoverlabel: { bgcolor: colours.middle, bordercolor: colours.grid, font: { color: colours.text } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colours.faint, activecolor: colours.text },
    // Where a finger scrolls the page it must not zoom a chart.
    dragmode: TOUCH ? false : "zoom",
    xaxis: { ...axis, title: { text: title } }, yaxis: { ...axis, tickformat: ".3~p", rangemode: "tozero" }, ...more,
  };
}

function edgesOf(chart) {
  const edges = chart.synthetic.map((_, place) => chart.start + place * chart.width);
  edges.push(chart.start + chart.synthetic.length * chart.width);
  return chart.log ? edges.map((edge) => 10 ** edge) : edges;
}

// A staircase: every bin has two points, so that filling and lines follow its edges.
function staircase(edges, heights) {
  const x = [edges[0]], y = [0];
  heights.forEach((height, place) => { x.push(edges[place], edges[place + 1]); y.push(height, height); });
  return { x: [...x, edges[edges.length - 1]], y: [...y, 0] };
}

function lines(chart, colours, real, label) {
  const edges = edgesOf(chart), hover = "%{y:.2~%}";
  const style = { type: "scatter", mode: "lines", hovertemplate: hover };
  return [
    { ...style, ...staircase(edges, real), name: label, fill: "tozeroy", fillcolor: colours.area,
      line: { color: colours.real, width: 1 } },
    { ...style, ...staircase(edges, shares(chart.synthetic)), name: "synthetic",
      line: { color: colours.synthetic, width: 2 } },
  ];
}

function band(chart, colours) {
  const [one, other] = chart.parts.map(shares), edges = edgesOf(chart);
  const low = staircase(edges, one.map((share, place) => Math.min(share, other[place])));
  const high = staircase(edges, one.map((share, place) => Math.max(share, other[place])));
  const style = { type: "scatter", mode: "lines", line: { width: 0 }, hoverinfo: "skip", legendgroup: "band" };
  return [
    { ...style, ...low, showlegend: false },
    { ...style, ...high, name: "real against real", fill: "tonexty", fillcolor: colours.band },
  ];
}

function bars(chart, colours) {
  const x = [...chart.levels.map((level) => String(level)), "other"];
  const [one, other] = chart.parts.map(shares), real = shares(added(...chart.parts));
  const spread = {
    type: "data", symmetric: false, color: colours.text, thickness: 1.5, width: 4,
    array: real.map((share, place) => Math.max(one[place], other[place]) - share),
    arrayminus: real.map((share, place) => share - Math.min(one[place], other[place])),
  };
  const style = { type: "bar", x, hovertemplate: "%{y:.2~%}" };
  return [
    { ...style, y: real, name: "real (bar: real against real)", marker: { color: colours.real }, error_y: spread },
    { ...style, y: shares(chart.synthetic), name: "synthetic", marker: { color: colours.synthetic } },
  ];
}

function column(chart, colours) {
  if (chart.levels) {
    const layout = layoutOf(colours, shortened(chart.axis, 40), { barmode: "group" });
    layout.xaxis.type = "category";
    return { data: bars(chart, colours), layout };
  }
  const real = shares(added(...chart.parts)), [area, line] = lines(chart, colours, real, "real");
  return { data: [area, ...band(chart, colours), line], layout: layoutOf(colours, shortened(chart.axis, 40)) };
}

function comparison(chart, colours) {
  const layout = layoutOf(colours, plain(chart.axis));
  if (chart.log) Object.assign(layout.xaxis, { type: "log", exponentformat: "power", nticks: 6 });
  return { data: lines(chart, colours, shares(chart.real), plain(chart.label)), layout };
}

function scale(colours) {
  return [[0, colours.low], [0.5, colours.middle], [1, colours.high]];
}

function heatmap(chart, colours) {
  const places = chart.names.map((_, place) => place), names = chart.names.map(plain);
  const labels = chart.cells.map((line, row) => line.map((_, place) => names[row] + "<br>" + names[place]));
  const trace = {
    type: "heatmap", z: chart.cells, x: places, y: places, text: labels, zmin: -chart.limit, zmax: chart.limit,
    hovertemplate: "%{text}<br>%{z:.2f}<extra></extra>", colorscale: scale(colours), hoverongaps: false,
    colorbar: { thickness: 8, len: 0.9, outlinewidth: 0, tickfont: { size: 10 } },
  };
  const ticks = { showticklabels: false, ticks: "", showgrid: false, zeroline: false, title: { text: "" } };
  const layout = layoutOf(colours, "", { hovermode: "closest", margin: { l: 4, r: 4, t: 4, b: 4 } });
  layout.xaxis = ticks;
  layout.yaxis = { ...ticks, autorange: "reversed", scaleanchor: "x", constrain: "domain" };
  return { data: [trace], layout };
}

function plane(chart, colours) {
  const layout = layoutOf(colours, plain(chart.axes[0]), { hovermode: "closest" });
  layout.xaxis.range = [chart.x[0], chart.x[chart.x.length - 1]];
  layout.yaxis = { ...layout.yaxis, tickformat: "", rangemode: "normal", title: { text: plain(chart.axes[1]) },
    range: [chart.y[0], chart.y[chart.y.length - 1]] };
  return layout;
}

function points(chart, colours) {
  const style = { type: "scatter", mode: "markers", hoverinfo: "skip" };
  const sets = [["real", chart.real], ["synthetic", chart.synthetic]];
  const data = sets.map(([name, [x, y]]) => (
    { ...style, name, x, y, marker: { color: colours[name], size: 4, opacity: 0.45 } }));
  return { data, layout: plane(chart, colours) };
}

function coverage(chart, colours) {
  const trace = {
    type: "heatmap", z: chart.cells, x: chart.x, y: chart.y, zmin: -3, zmax: 3, colorscale: scale(colours),
    hovertemplate: "%{z:.1f}<extra></extra>", hoverongaps: false,
    colorbar: { thickness: 8, outlinewidth: 0, tickvals: [-3, 0, 3], ticktext: ["1/8", "equal", "8 x"],
      tickfont: { size: 10 } },
  };
  return { data: [trace], layout: plane(chart, colours) };
}

const DRAWINGS = { column, comparison, heatmap, points, coverage };
