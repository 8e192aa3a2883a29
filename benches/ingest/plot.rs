//! The table of `scale` as a picture.

use std::{error::Error, path::Path};

use plotters::{coord::Shift, prelude::*};
use testkit::contest::{Contender, Run};

use crate::{scale::is_held, table::Row};

/// A figure of a run.
type Value = fn(&Run) -> f64;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Told apart also by those who see fewer colours (Okabe and Ito).
const COLORS: [RGBColor; 4] =
    [RGBColor(213, 94, 0), RGBColor(86, 180, 233), RGBColor(0, 114, 178), RGBColor(0, 158, 115)];

struct Line {
    contender: Contender,
    color: RGBColor,
    /// Each with whether it is filled.
    points: Vec<((f64, f64), bool)>,
}

fn rate(row: &Row) -> f64 {
    f64::from(row.contender.1.tps.unwrap_or(1))
}

/// Throughput with the legend, p99 and CPU time over the rate, and memory over what the pool holds.
pub(crate) fn scale(path: &Path, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(path, (1100, 860)).into_drawing_area();
    area.fill(&WHITE)?;
    let panels = area.split_evenly((2, 2));
    let lines = |point: &dyn Fn(&Row) -> (f64, f64)| -> Vec<Line> {
        let line = |(contender, color): (Contender, RGBColor)| {
            let mine = rows.iter().filter(|row| row.contender.0 == contender);
            Line { contender, color, points: mine.map(|row| (point(row), is_held(row))).collect() }
        };
        Contender::ALL.into_iter().zip(COLORS).map(line).collect()
    };
    let over_rate: [(&str, Value); 3] = [
        ("pooled a second (filled: nothing lost)", Run::pooled_per_s),
        ("p99 of what was pooled, us", |run| run.latency.p99),
        ("CPU time per transaction, us", Run::cpu_us),
    ];
    for (number, (title, value)) in over_rate.into_iter().enumerate() {
        let lines = lines(&|row| (rate(row), row.median(value).max(1e-3)));
        panel(&panels[number], title, "announced a second", number == 0, &lines)?;
    }
    let memory = lines(&|row| {
        let held = row.median(|run| run.pooled as f64);
        (held.max(1.0), row.median(|run| run.grown_bytes as f64 / 1e6).max(0.1))
    });
    panel(&panels[3], "memory added, MB", "transactions in the pool", false, &memory)?;
    area.present()?;
    Ok(())
}

fn panel(
    area: &Area<'_>,
    title: &str,
    across: &str,
    has_legend: bool,
    lines: &[Line],
) -> Result<(), Box<dyn Error>> {
    let span = |of: fn(&(f64, f64)) -> f64| {
        let values = || lines.iter().flat_map(|line| &line.points).map(|(point, _)| of(point));
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
        .x_label_formatter(&short)
        .y_label_formatter(&short)
        .draw()?;
    for Line { contender, color, points } in lines {
        let (color, curve) = (*color, points.iter().map(|(point, _)| *point));
        chart
            .draw_series(LineSeries::new(curve, color.stroke_width(2)))?
            .label(contender.name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3)));
        chart.draw_series(points.iter().map(|(point, filled)| {
            let style = if *filled { color.filled() } else { color.stroke_width(1) };
            Circle::new(*point, 4, style)
        }))?;
    }
    if has_legend {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
    }
    Ok(())
}
