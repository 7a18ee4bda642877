// SPDX-License-Identifier: GPL-2.0

//! Plots the results of `make bench`: `plots bench.json FOLDER [goodput.json] [table.txt]` writes
//! SVG files to the folder. The table is the output of `make profile`.
//!
//! A plot without data is omitted, and its file from an earlier run is deleted.

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::coord::Shift;
use plotters::prelude::SeriesLabelPosition::{LowerLeft, LowerRight, UpperLeft};
use plotters::prelude::*;
use serde_json::Value;
use std::error::Error;
use std::path::Path;
use std::{env, fs, process};

type Done = Result<(), Box<dyn Error>>;

/// Width and height of a panel, in pixels.
const PANEL: (u32, u32) = (440, 360);

/// Names and colours of the drivers. The palette is safe for colour-blind readers.
const DRIVERS: [(&str, RGBColor); 4] = [
    ("rrxe", RGBColor(0, 114, 178)),
    ("rdma_rxe", RGBColor(213, 94, 0)),
    ("siw", RGBColor(0, 158, 115)),
    ("tcp", RGBColor(204, 121, 167)),
];

/// The percentiles of a latency, as named in `bench.json`.
const PERCENTILES: [&str; 5] = ["least", "median", "99 %", "99.9 %", "most"];

/// Number of functions in the plot of a profile.
const FUNCTIONS: usize = 30;

/// A line of a plot: driver, colour and points.
type Line = (&'static str, RGBColor, Vec<(f64, f64)>);

/// A panel: its title and its lines.
type Panel = (String, Vec<Line>);

/// A formatter for axis labels.
type Format = fn(f64) -> String;

/// Properties shared by the panels of a plot.
struct Axes {
    x: &'static str,
    y: &'static str,
    /// Formatter for the labels of the horizontal axis.
    name: Format,
    /// Position of the legend, in a corner that the lines usually avoid.
    legend: SeriesLabelPosition,
    /// Whether the horizontal axis is logarithmic (base 2), and the vertical one (base 10).
    log: (bool, bool),
}

fn text<'a>(row: &'a Value, field: &str) -> &'a str {
    row[field].as_str().unwrap_or("")
}

/// Returns the mean of an array of numbers, or `None` if the array is empty.
fn mean(numbers: &Value) -> Option<f64> {
    let numbers: Vec<f64> = numbers
        .as_array()?
        .iter()
        .filter_map(Value::as_f64)
        .collect();
    (!numbers.is_empty()).then(|| numbers.iter().sum::<f64>() / numbers.len() as f64)
}

/// Formats a number of bytes.
fn bytes(size: f64) -> String {
    match size as u64 {
        size @ 0..1024 => format!("{size} B"),
        size @ 1024..1048576 => format!("{} KiB", size >> 10),
        size => format!("{} MiB", size >> 20),
    }
}

/// Formats a number with at most four decimals.
fn plain(number: f64) -> String {
    format!("{}", (number * 1e4).round() / 1e4)
}

/// Returns one line per driver; `point` maps a result to a point, if it has one.
fn lines(rows: &[Value], point: impl Fn(&Value) -> Option<(f64, f64)>) -> Vec<Line> {
    let mut found = Vec::new();
    for (name, color) in DRIVERS {
        let of = rows.iter().filter(|row| text(row, "driver") == name);
        let mut points: Vec<_> = of.filter_map(&point).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        if !points.is_empty() {
            found.push((name, color, points));
        }
    }
    found
}

/// Returns the minimum and maximum; widens the range if they are equal.
fn range(numbers: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let min = numbers.clone().fold(f64::INFINITY, f64::min);
    let max = numbers.fold(f64::NEG_INFINITY, f64::max);
    if min < max {
        (min, max)
    } else {
        (min * 0.9, max * 1.1 + 1e-9)
    }
}

fn draw_panel<X, Y>(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    (title, lines): &Panel,
    axes: &Axes,
    x: X,
    y: Y,
) -> Done
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .margin_right(24)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(x, y)?;
    let name = |number: &f64| (axes.name)(*number);
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(axes.x).x_labels(7).x_label_formatter(&name);
    mesh.y_desc(axes.y)
        .y_labels(6)
        .y_label_formatter(&|number| plain(*number));
    mesh.light_line_style(WHITE).draw()?;
    for (name, color, points) in lines {
        let color = *color;
        chart
            .draw_series(
                LineSeries::new(points.iter().copied(), color.stroke_width(2)).point_size(3),
            )?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(axes.legend.clone())
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(())
}

/// Draws a plot of panels side by side. Without data, it draws nothing.
fn draw(path: &Path, panels: &[Panel], axes: &Axes) -> Done {
    let panels: Vec<_> = panels.iter().filter(|panel| !panel.1.is_empty()).collect();
    if panels.is_empty() {
        // A file of an earlier run would pass for a result of this one.
        return match fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        };
    }
    let size = (PANEL.0 * panels.len() as u32, PANEL.1);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, panel) in root.split_evenly((1, panels.len())).iter().zip(&panels) {
        let points = panel.1.iter().flat_map(|line| line.2.iter().copied());
        let (left, right) = range(points.clone().map(|point| point.0));
        let (bottom, top) = range(points.map(|point| point.1));
        let log_x = || (left..right).log_scale().base(2.0);
        let log_y = || (bottom * 0.8..top * 1.25).log_scale();
        match axes.log {
            (true, true) => draw_panel(area, panel, axes, log_x(), log_y())?,
            (true, false) => draw_panel(area, panel, axes, log_x(), 0.0..top * 1.1)?,
            (false, true) => draw_panel(area, panel, axes, left..right, log_y())?,
            (false, false) => draw_panel(area, panel, axes, left..right, 0.0..top * 1.1)?,
        }
    }
    root.present()?;
    println!("bench: wrote {}", path.display());
    Ok(())
}

/// Returns the messages per second of a result of the group "sizes", from a rate or a bandwidth.
fn rate(row: &Value) -> Option<f64> {
    let figure = mean(&row["runs"])?;
    match text(row, "what") {
        "rate" => Some(figure),
        "bandwidth" => Some(figure * 1048576.0 / row["size"].as_f64()?),
        _ => None,
    }
}

/// Returns the results with the text `wanted` in `field`.
fn those(rows: &[Value], field: &str, wanted: &str) -> Vec<Value> {
    rows.iter()
        .filter(|row| text(row, field) == wanted)
        .cloned()
        .collect()
}

/// Returns the distinct texts in `field`, in order of first appearance.
fn texts(rows: &[Value], field: &str) -> Vec<String> {
    let mut found = Vec::new();
    for row in rows {
        let name = text(row, field).to_string();
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

/// Returns one panel per distinct text in `field`, with one line per driver.
fn panels(rows: &[Value], field: &str, point: impl Fn(&Value) -> Option<(f64, f64)>) -> Vec<Panel> {
    let names = texts(rows, field).into_iter();
    names
        .map(|name| (name.clone(), lines(&those(rows, field, &name), &point)))
        .collect()
}

fn plots(rows: &[Value], folder: &Path) -> Done {
    let sizes = those(rows, "group", "sizes");
    let axes = Axes {
        x: "bytes of a message",
        y: "MB/s",
        name: bytes,
        legend: UpperLeft,
        log: (true, false),
    };
    let bandwidth = panels(&sizes, "operation", |row| {
        let size = row["size"].as_f64()?;
        Some((size, rate(row)? * size / 1048576.0))
    });
    draw(&folder.join("bandwidth.svg"), &bandwidth, &axes)?;
    let messages = panels(&sizes, "operation", |row| {
        Some((row["size"].as_f64()?, rate(row)?))
    });
    let axes = Axes {
        y: "messages/s",
        legend: LowerLeft,
        log: (true, true),
        ..axes
    };
    draw(&folder.join("messages.svg"), &messages, &axes)?;

    let latencies = those(rows, "what", "latency");
    let cases = texts(&latencies, "case").into_iter();
    let spread = cases
        .map(|case| (case.clone(), percentiles(&those(&latencies, "case", &case))))
        .collect::<Vec<_>>();
    let name: Format = |place| {
        if place.fract() == 0.0 {
            PERCENTILES[place as usize].into()
        } else {
            String::new()
        }
    };
    let axes = Axes {
        x: "",
        y: "us",
        name,
        legend: UpperLeft,
        log: (false, true),
    };
    draw(&folder.join("latency.svg"), &spread, &axes)?;

    let many = those(rows, "group", "queue-pairs");
    let cost = panels(&many, "operation", |row| {
        let same = |other: &&Value| {
            ["driver", "operation"]
                .iter()
                .all(|field| other[*field] == row[*field])
        };
        let one = many
            .iter()
            .filter(same)
            .find(|other| other["queue_pairs"] == 1)?;
        Some((
            row["queue_pairs"].as_f64()?,
            mean(&one["runs"])? / mean(&row["runs"])?,
        ))
    });
    let y = "cost of a message, that with one being 1";
    let axes = Axes {
        x: "queue pairs",
        y,
        name: plain,
        legend: LowerRight,
        log: (true, false),
    };
    draw(&folder.join("queue-pairs.svg"), &cost, &axes)
}

/// Returns the latency percentiles of a case, one line per driver.
fn percentiles(rows: &[Value]) -> Vec<Line> {
    let mut found = Vec::new();
    for (name, color) in DRIVERS {
        for row in rows.iter().filter(|row| text(row, "driver") == name) {
            let of = |name: &str| {
                let runs = row["latencies"]
                    .as_array()?
                    .iter()
                    .map(|run| run[name].clone())
                    .collect();
                mean(&Value::Array(runs))
            };
            let figures = PERCENTILES.iter().enumerate();
            let points: Vec<_> = figures
                .filter_map(|(place, name)| Some((place as f64, of(name)?)))
                .collect();
            if !points.is_empty() {
                found.push((name, color, points));
            }
        }
    }
    found
}

/// Plots the results of `make goodput`: the goodput under packet loss relative to the undisturbed
/// goodput.
fn goodput(rows: &[Value], folder: &Path) -> Done {
    let point = |row: &Value| {
        let loss = text(row, "wire")
            .strip_prefix("loss ")?
            .strip_suffix(" %")?
            .parse()
            .ok()?;
        Some((loss, 100.0 * mean(&row["bad"])? / mean(&row["clean"])?))
    };
    let mut rows = rows.to_vec();
    for row in &mut rows {
        row["driver"] = row["pair"].clone();
    }
    let y = "% of the undisturbed goodput";
    let axes = Axes {
        x: "% of packets lost",
        y,
        name: plain,
        legend: LowerLeft,
        log: (true, false),
    };
    draw(
        &folder.join("goodput.svg"),
        &panels(&rows, "program", point),
        &axes,
    )
}

/// Plots the first functions of the table of `make profile`, whose lines consist of a count, a
/// share and a name.
fn instructions(table: &str, path: &Path) -> Done {
    let (title, lines) = table
        .split_once('\n')
        .ok_or("the table of make profile has one line")?;
    let parse = |line: &str| {
        let (count, rest) = line.trim_start().split_once(' ')?;
        let name = rest.split_once('%')?.1.trim().to_owned();
        Some((count.parse().ok()?, name))
    };
    let functions: Vec<(f64, String)> = lines.lines().filter_map(parse).take(FUNCTIONS).collect();
    let max = functions
        .first()
        .ok_or("the table of make profile has no functions")?
        .0;
    let size = (PANEL.0 * 2, 60 + 18 * functions.len() as u32);
    let root = SVGBackend::new(path, size).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(30)
        .build_cartesian_2d(0.0..max * 2.0, 0.0..functions.len() as f64)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_y_mesh()
        .disable_y_axis()
        .x_label_formatter(&|number| plain(*number))
        .draw()?;
    for (place, (count, name)) in functions.iter().enumerate() {
        let bottom = (functions.len() - place) as f64 - 0.9;
        let bar = [(0.0, bottom), (*count, bottom + 0.8)];
        chart.draw_series([Rectangle::new(bar, DRIVERS[0].1.mix(0.6).filled())])?;
        let label = format!("{count} {name}");
        chart.draw_series([Text::new(
            label,
            (*count + max / 100.0, bottom + 0.7),
            ("sans-serif", 12),
        )])?;
    }
    root.present()?;
    println!("bench: wrote {}", path.display());
    Ok(())
}

fn read(path: &str) -> Result<Value, Box<dyn Error>> {
    let file = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    Ok(serde_json::from_str(&file).map_err(|error| format!("{path}: {error}"))?)
}

fn run(arguments: &[String]) -> Done {
    let [bench, folder, more @ ..] = arguments else {
        return Err("name a bench.json and a folder".into());
    };
    let folder = Path::new(folder);
    plots(
        read(bench)?["rows"]
            .as_array()
            .ok_or("bench.json has no rows")?,
        folder,
    )?;
    for path in more {
        if path.ends_with(".json") {
            goodput(
                read(path)?.as_array().ok_or("goodput.json is no list")?,
                folder,
            )?;
        } else {
            let table = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
            instructions(&table, &folder.join("instructions.svg"))?;
        }
    }
    Ok(())
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let Err(error) = run(&arguments) {
        eprintln!("plots: {error}");
        process::exit(1);
    }
}
