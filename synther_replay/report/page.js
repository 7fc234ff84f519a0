// The page: unpacks Plotly after the text is shown, draws charts when they come into view, and follows the choices.

async function unpackedPlotly() {
  const packed = atob(document.getElementById("plotly").textContent);
  const bytes = Uint8Array.from(packed, (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const script = document.createElement("script");
  script.textContent = await new Response(stream).text();
  document.head.append(script);
}

const data = JSON.parse(document.getElementById("data").textContent);
const shown = new Map(); // element of a chart -> its values
const options = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
if (TOUCH) options.displayModeBar = false; // it would always be there, and cover the legend

function draw(place) {
  const chart = shown.get(place), { data: traces, layout } = DRAWINGS[chart.kind](chart, theme());
  return Plotly.react(place, traces, layout, options).then(() => place.setAttribute("data-drawn", chart.kind));
}

function choose(number) {
  const place = document.getElementById("chart-column"), picked = data.columns[number];
  document.getElementById("pick").value = String(number);
  document.getElementById("reason").textContent = picked.reason;
  for (const card of document.querySelectorAll(".card")) {
    card.setAttribute("aria-pressed", String(Number(card.dataset.column) === number));
  }
  shown.set(place, { kind: "column", ...picked });
  place.setAttribute("aria-label", "Histogram of " + picked.axis);
  if (window.Plotly) draw(place);
}

function move(step) {
  const pick = document.getElementById("pick"), count = pick.options.length;
  pick.selectedIndex = (pick.selectedIndex + step + count) % count;
  choose(Number(pick.value));
}

function listen() {
  const pick = document.getElementById("pick"), find = document.getElementById("find");
  pick.addEventListener("change", () => choose(Number(pick.value)));
  document.getElementById("previous").addEventListener("click", () => move(-1));
  document.getElementById("next").addEventListener("click", () => move(1));
  for (const button of document.querySelectorAll("[data-column]")) {
    button.addEventListener("click", () => {
      choose(Number(button.dataset.column));
      pick.scrollIntoView({ block: "center", behavior: "smooth" });
    });
  }
  find.addEventListener("input", () => {
    for (const line of document.querySelectorAll("table.all tbody tr")) {
      line.hidden = !line.cells[0].textContent.toLowerCase().includes(find.value.toLowerCase());
    }
  });
}

async function start() {
  for (const [name, chart] of Object.entries(data.charts)) {
    const place = document.getElementById("chart-" + name);
    if (place) shown.set(place, chart);
  }
  choose(Number(document.getElementById("pick").value));
  listen();
  try {
    await unpackedPlotly();
  } catch (error) {
    for (const place of shown.keys()) place.textContent = "Charts need a browser of 2023 or newer.";
    return;
  }
  for (const place of shown.keys()) place.setAttribute("role", "img");
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting && !entry.target.dataset.drawn) draw(entry.target);
    }
  }, { rootMargin: "400px" });
  for (const place of shown.keys()) watcher.observe(place);
  const redraw = () => { for (const place of shown.keys()) if (place.dataset.drawn) draw(place); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
}

start();
