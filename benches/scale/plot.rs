//! The table as a picture of four panels.

use std::{error::Error, path::Path};

use plotters::prelude::*;
use testkit::contest::Contender;

use crate::row::{Figures, Row, is_held};

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Point = (f64, f64);

/// Told apart also by those who see fewer colours (Okabe and Ito).
const COLORS: [RGBColor; 4] =
    [RGBColor(213, 94, 0), RGBColor(86, 180, 233), RGBColor(0, 114, 178), RGBColor(0, 158, 115)];

/// Draws throughput with the legend, p99 and CPU time over the rate, and memory over what the pool holds.
pub(crate) fn draw(path: &Path, rows: &[Row]) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(path, (1100, 860)).into_drawing_area();
    area.fill(&WHITE)?;
    let panels = area.split_evenly((2, 2));
    let rate = |row: &Row| f64::from(row.contender.1);
    let of = |value: fn(&Figures) -> f64| move |row: &Row| (rate(row), row.median(value).max(1e-3));
    panel(
        &panels[0],
        rows,
        "pooled a second (filled: nothing lost)",
        "announced a second",
        true,
        of(|run| run.pooled_per_s),
    )?;
    panel(
        &panels[1],
        rows,
        "p99 of what was pooled, us",
        "announced a second",
        false,
        of(|run| run.p99_us),
    )?;
    panel(
        &panels[2],
        rows,
        "CPU time per transaction, us",
        "announced a second",
        false,
        of(|run| run.cpu_us),
    )?;
    panel(&panels[3], rows, "memory added, MB", "transactions in the pool", false, |row| {
        let held = row.median(|run| run.pooled as f64);
        (held.max(1.0), row.median(|run| run.grown_bytes as f64 / 1e6).max(0.1))
    })?;
    area.present()?;
    Ok(())
}

fn panel(
    area: &Area<'_>,
    rows: &[Row],
    title: &str,
    below: &str,
    has_legend: bool,
    point: impl Fn(&Row) -> Point,
) -> Result<(), Box<dyn Error>> {
    let span = |of: fn(&Point) -> f64| {
        let values = || rows.iter().map(|row| of(&point(row)));
        (values().fold(f64::MAX, f64::min) * 0.7)..(values().fold(f64::MIN, f64::max) * 1.5)
    };
    let (across, up) = (span(|point| point.0), span(|point| point.1));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 18))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(across.log_scale(), up.log_scale())?;
    let short = |value: &f64| match *value {
        value if value >= 1e6 => format!("{}M", value / 1e6),
        value if value >= 1e3 => format!("{}k", value / 1e3),
        value => value.to_string(),
    };
    chart
        .configure_mesh()
        .x_desc(below)
        .x_label_formatter(&short)
        .y_label_formatter(&short)
        .draw()?;
    for (place, color) in COLORS.into_iter().enumerate() {
        let mine: Vec<_> = rows.iter().filter(|row| row.contender.0 == place).collect();
        if mine.is_empty() {
            continue;
        }
        chart
            .draw_series(LineSeries::new(mine.iter().map(|row| point(row)), color.stroke_width(2)))?
            .label(Contender::ALL[place].name())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3)));
        chart.draw_series(mine.iter().map(|row| {
            let style = if is_held(row) { color.filled() } else { color.stroke_width(1) };
            Circle::new(point(row), 4, style)
        }))?;
    }
    if !has_legend {
        return Ok(());
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}
