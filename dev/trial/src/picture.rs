//! Draws a run: its incidents, the orders that came in and that builders held, and the latency.

use std::path::Path;

use plotters::{coord::Shift, prelude::*};

use crate::{
    run::{Failure, HeadRow, RunResult},
    world::Incident,
};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Colours that can be told apart by colour-blind readers too (Okabe and Ito).
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// The rows of incidents.
const ROWS: [&str; 5] = ["attacks", "network", "fleet", "processes", "nodes"];

/// Returns the row of an incident.
fn row(incident: &Incident) -> usize {
    match incident {
        Incident::Attack { .. } => 0,
        Incident::StallLink { .. } | Incident::ResetLink { .. } | Incident::HalfClose { .. } => 1,
        Incident::KillServer { .. }
        | Incident::StopServer { .. }
        | Incident::CutServer { .. }
        | Incident::ResetServer { .. }
        | Incident::FillDisk { .. } => 2,
        Incident::Kill { .. }
        | Incident::Replace { .. }
        | Incident::Stop { .. }
        | Incident::Clock { .. }
        | Incident::RefuseResources { .. } => 3,
        _ => 4,
    }
}

/// Draws a run into an SVG file.
pub(crate) fn draw(path: &Path, result: &RunResult) -> Result<(), Failure> {
    let area = SVGBackend::new(path, (1100, 700)).into_drawing_area();
    // With a background of its own it can be read on a dark page.
    area.fill(&WHITE)?;
    let heads = &result.heads;
    let end = heads.last().map_or(1.0, |head| head.time.as_secs_f64());
    let (bands, rest) = area.split_vertically(190);
    let (counts, latency) = rest.split_vertically(280);
    draw_bands(&bands, result, end)?;
    let line = |value: fn(&HeadRow) -> f64| -> Vec<_> {
        heads.iter().map(|head| (head.time.as_secs_f64(), value(head))).collect()
    };
    let per_head = heads
        .windows(2)
        .map(|pair| (pair[1].time.as_secs_f64(), (pair[1].orders - pair[0].orders) as f64));
    let mut lines =
        vec![("orders received since the previous head".to_owned(), per_head.collect())];
    let builders = heads.first().map_or(0, |head| head.held.len());
    for builder in 0..builders {
        let points = heads.iter().map(|head| (head.time.as_secs_f64(), head.held[builder] as f64));
        lines.push((format!("held by builder {}", builder + 1), points.collect()));
    }
    draw_lines(&counts, "orders", end, &lines)?;
    let times = [
        ("p50".to_owned(), line(|head| head.p50_ms)),
        ("p99".to_owned(), line(|head| head.p99_ms)),
    ];
    draw_lines(&latency, "from the announcement to a builder, ms", end, &times)?;
    area.present()?;
    Ok(())
}

fn draw_bands(area: &Area<'_>, result: &RunResult, end: f64) -> Result<(), Failure> {
    let mut chart = ChartBuilder::on(area)
        .caption("incidents", ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(20)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..end, 0.0..ROWS.len() as f64)?;
    let label = |position: &f64| {
        // A row is labelled in its middle.
        if position.fract() == 0.5 { ROWS[*position as usize].to_owned() } else { String::new() }
    };
    chart.configure_mesh().disable_mesh().y_labels(11).y_label_formatter(&label).draw()?;
    chart.draw_series(result.incidents.iter().map(|(begins, incident)| {
        let (begins, row) = (begins.as_secs_f64(), row(incident) as f64);
        let duration = incident.duration().as_secs_f64().max(end / 250.0);
        let color = if incident.is_attack() { COLORS[1] } else { COLORS[0] };
        Rectangle::new(
            [(begins, row + 0.15), (begins + duration, row + 0.85)],
            color.mix(0.7).filled(),
        )
    }))?;
    Ok(())
}

fn draw_lines(
    area: &Area<'_>,
    title: &str,
    end: f64,
    lines: &[(String, Vec<(f64, f64)>)],
) -> Result<(), Failure> {
    let values = || lines.iter().flat_map(|(_, points)| points).map(|point| point.1.max(0.1));
    let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(1.0, f64::max));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(30)
        .y_label_area_size(80)
        .build_cartesian_2d(0.0..end, (least * 0.7..most * 1.5).log_scale())?;
    chart.configure_mesh().x_desc("seconds").light_line_style(WHITE).draw()?;
    for (number, (name, points)) in lines.iter().enumerate() {
        let color = COLORS[number % COLORS.len()];
        let points = points.iter().map(|(x, y)| (*x, y.max(0.1)));
        chart
            .draw_series(LineSeries::new(points, color.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}
