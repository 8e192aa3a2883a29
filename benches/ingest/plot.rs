//! The paced part of the table as a picture.

use std::{path::Path, time::Duration};

use plotters::prelude::*;
use testkit::contest::Contender;

use crate::table::{Row, latency_us, lost_share};

/// Draws p50 (thin) and p99 (bold) over the rate, one panel for each answer time.
pub(crate) fn draw(path: &Path, rows: &[Row]) -> Result<(), Box<dyn std::error::Error>> {
    let paced: Vec<_> = rows.iter().filter(|row| row.contender.1.tps.is_some()).collect();
    let mut latencies: Vec<Duration> = paced.iter().map(|row| row.contender.1.latency).collect();
    latencies.dedup();
    let rates = || paced.iter().filter_map(|row| row.contender.1.tps).map(f64::from);
    let all = || paced.iter().flat_map(|row| [latency_us(row, 0.5), latency_us(row, 0.99)]);
    let (left, right) = (rates().fold(f64::MAX, f64::min), rates().fold(0.0, f64::max));
    let (low, high) = (all().fold(f64::MAX, f64::min), all().fold(1.0, f64::max));

    let area = SVGBackend::new(path, (1000, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    for (panel, answer) in area.split_evenly((1, latencies.len().max(1))).iter().zip(latencies) {
        let answer_ms = answer.as_secs_f64() * 1e3;
        let mut chart = ChartBuilder::on(panel)
            .caption(format!("node answers in {answer_ms} ms"), ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(
                (left * 0.9..right * 1.1).log_scale(),
                (low * 0.7..high * 2.0).log_scale(),
            )?;
        chart
            .configure_mesh()
            .x_desc("announced per second")
            .y_desc("announced to visible, us: p50 thin, p99 bold")
            .draw()?;
        for (contender, color) in Contender::ALL.into_iter().zip([RED, BLUE, GREEN, MAGENTA]) {
            let mine =
                |row: &&&Row| row.contender.0 == contender && row.contender.1.latency == answer;
            for (quantile, width) in [(0.5, 1), (0.99, 3)] {
                let points = paced.iter().filter(mine).filter_map(|row| {
                    Some((f64::from(row.contender.1.tps?), latency_us(row, quantile)))
                });
                let line = chart.draw_series(LineSeries::new(points, color.stroke_width(width)))?;
                if width > 1 {
                    let lost = paced.iter().filter(mine).map(|row| lost_share(row));
                    let worst = lost.fold(0.0, f64::max) * 100.0;
                    line.label(format!("{}, lost up to {worst:.1} %", contender.name())).legend(
                        move |(x, y)| {
                            PathElement::new([(x, y), (x + 18, y)], color.stroke_width(3))
                        },
                    );
                }
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
    }
    area.present()?;
    Ok(())
}
