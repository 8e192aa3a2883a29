//! The tables as pictures.

use std::{error::Error, path::Path, time::Duration};

use plotters::{coord::Shift, prelude::*};
use testkit::contest::{Contender, Run};

use crate::{
    scale::is_held,
    table::{Row, lost_share},
};

/// A figure of a run.
type Value = fn(&Run) -> f64;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Told apart also by those who see fewer colours (Okabe and Ito).
const COLORS: [RGBColor; 4] =
    [RGBColor(213, 94, 0), RGBColor(86, 180, 233), RGBColor(0, 114, 178), RGBColor(0, 158, 115)];

struct Line {
    color: RGBColor,
    width: u32,
    /// In the legend, if it stands there.
    label: Option<String>,
    points: Vec<(f64, f64)>,
    /// Whether each point is filled; no points are drawn without it.
    filled: Vec<bool>,
}

fn rate(row: &Row) -> f64 {
    f64::from(row.contender.1.tps.unwrap_or(1))
}

/// p50 (thin) and p99 (bold) over the rate, one panel for each answer time.
pub(crate) fn latency(path: &Path, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let mut answers: Vec<Duration> = rows.iter().map(|row| row.contender.1.latency).collect();
    answers.dedup();
    let area = SVGBackend::new(path, (1000, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    for (area, answer) in area.split_evenly((1, answers.len().max(1))).iter().zip(answers) {
        let mut lines = Vec::new();
        for (contender, color) in Contender::ALL.into_iter().zip(COLORS) {
            let mine: Vec<_> = rows
                .iter()
                .filter(|row| row.contender.0 == contender)
                .filter(|row| row.contender.1.latency == answer && row.contender.1.tps.is_some())
                .collect();
            let worst = mine.iter().map(|row| lost_share(row)).fold(0.0, f64::max) * 100.0;
            let label = format!("{}, lost up to {worst:.1} %", contender.name());
            let mut line = |width, label, value: Value| {
                let points = mine.iter().map(|row| (rate(row), row.median(value))).collect();
                lines.push(Line { color, width, label, points, filled: Vec::new() });
            };
            line(1, None, |run| run.latency.p50);
            line(3, Some(label), |run| run.latency.p99);
        }
        let title = format!("node answers in {} ms", answer.as_secs_f64() * 1e3);
        let across = "announced per second";
        panel(area, &title, across, "announced to visible, us: p50 thin, p99 bold", &lines)?;
    }
    area.present()?;
    Ok(())
}

/// Throughput with the legend, p99 and CPU time over the rate, and memory over what the pool holds.
pub(crate) fn scale(path: &Path, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(path, (1100, 860)).into_drawing_area();
    area.fill(&WHITE)?;
    let panels = area.split_evenly((2, 2));
    let lines = |is_first: bool, point: &dyn Fn(&Row) -> (f64, f64)| -> Vec<Line> {
        let line = |(contender, color): (Contender, RGBColor)| {
            let mine: Vec<_> = rows.iter().filter(|row| row.contender.0 == contender).collect();
            Line {
                color,
                width: 2,
                label: is_first.then(|| contender.name().to_owned()),
                points: mine.iter().map(|row| point(row)).collect(),
                filled: mine.iter().map(|row| is_held(row)).collect(),
            }
        };
        Contender::ALL.into_iter().zip(COLORS).map(line).collect()
    };
    let over_rate: [(&str, Value); 3] = [
        ("pooled a second (filled: nothing lost)", Run::pooled_per_s),
        ("p99 of what was pooled, us", |run| run.latency.p99),
        ("CPU time per transaction, us", Run::cpu_us),
    ];
    for (number, (title, value)) in over_rate.into_iter().enumerate() {
        let lines = lines(number == 0, &|row| (rate(row), row.median(value).max(1e-3)));
        panel(&panels[number], title, "announced a second", "", &lines)?;
    }
    let memory = lines(false, &|row| {
        let held = row.median(|run| run.pooled as f64);
        (held.max(1.0), row.median(|run| run.grown_bytes as f64 / 1e6).max(0.1))
    });
    panel(&panels[3], "memory added, MB", "transactions in the pool", "", &memory)?;
    area.present()?;
    Ok(())
}

fn panel(
    area: &Area<'_>,
    title: &str,
    across: &str,
    up: &str,
    lines: &[Line],
) -> Result<(), Box<dyn Error>> {
    let span = |of: fn(&(f64, f64)) -> f64| {
        let values = || lines.iter().flat_map(|line| &line.points).map(of);
        (values().fold(f64::MAX, f64::min) * 0.7)..(values().fold(1e-3, f64::max) * 1.5)
    };
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(span(|point| point.0).log_scale(), span(|point| point.1).log_scale())?;
    let short = |value: &f64| match *value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e3 => format!("{}k", value / 1e3),
        value => value.to_string(),
    };
    chart
        .configure_mesh()
        .x_desc(across)
        .y_desc(up)
        .x_label_formatter(&short)
        .y_label_formatter(&short)
        .draw()?;
    for Line { color, width, label, points, filled } in lines {
        let (color, points) = (*color, points.iter().copied());
        let drawn =
            chart.draw_series(LineSeries::new(points.clone(), color.stroke_width(*width)))?;
        if let Some(label) = label {
            drawn.label(label).legend(move |(x, y)| {
                PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3))
            });
        }
        chart.draw_series(points.zip(filled).map(|(point, filled)| {
            let style = if *filled { color.filled() } else { color.stroke_width(1) };
            Circle::new(point, 4, style)
        }))?;
    }
    if lines.iter().any(|line| line.label.is_some()) {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
    }
    Ok(())
}
