//! Plots as SVG text.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::error::ReportError;
use super::number::number;

const SIZE: (u32, u32) = (860, 420);
/// Colours that are distinguishable with colour vision deficiency (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(110, 110, 110),
    RGBColor(120, 94, 30),
];
/// Distance between dots side by side, as a share of the distance between two names.
const DOT_GAP: f64 = 0.1;
/// Radius of a dot in pixels, if the dots are side by side.
const DOT_RADIUS: i32 = 6;
const TEXT: (&str, u32) = ("sans-serif", 16);
/// Ratio of largest to smallest value above which the axis is logarithmic.
const LINEAR_SPAN_MAX: f64 = 20.0;

#[derive(Debug, serde::Serialize)]
pub(super) struct Plot {
    pub(super) title: String,
    /// Explanation below the title.
    pub(super) note: String,
    pub(super) svg: String,
    pub(super) legend: Vec<Legend>,
}

#[derive(Debug, serde::Serialize)]
pub(super) struct Legend {
    pub(super) name: String,
    pub(super) colour: String,
}

pub(super) struct Series<T> {
    pub(super) name: String,
    pub(super) values: Vec<T>,
}

pub(super) struct Titles<'a> {
    pub(super) title: &'a str,
    pub(super) note: &'a str,
    pub(super) x: &'a str,
    pub(super) y: &'a str,
}

impl Plot {
    /// Assembles the plot of `series`. `log_axis` names the logarithmic axis, if any.
    fn new<T>(titles: &Titles<'_>, log_axis: Option<&str>, series: &[Series<T>], svg: String) -> Self {
        let note = match log_axis {
            Some(axis) => format!("{} The {axis} axis is logarithmic.", titles.note),
            None => titles.note.to_owned(),
        };
        let legend = series.iter().enumerate().map(|(at, series)| legend(at, &series.name)).collect();
        Plot { title: titles.title.to_owned(), note: note.trim().to_owned(), svg, legend }
    }
}

fn colour(at: usize) -> RGBColor {
    COLOURS[at % COLOURS.len()]
}

fn legend(at: usize, name: &str) -> Legend {
    let RGBColor(red, green, blue) = colour(at);
    Legend { name: name.to_owned(), colour: format!("rgb({red},{green},{blue})") }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Draws an SVG, and removes its namespace, which inline SVG does not need.
fn svg(draw: impl FnOnce(&Area<'_>) -> Result<(), String>) -> Result<String, ReportError> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&area).map_err(ReportError::Plot)?;
        area.present().map_err(|error| ReportError::Plot(error.to_string()))?;
    }
    let from = text.find("<svg").unwrap_or(0);
    Ok(text[from..].replace(" xmlns=\"http://www.w3.org/2000/svg\"", ""))
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    /// Linear, from 0.
    FromZero,
    /// Logarithmic if all values are above 0 and their ratio exceeds `LINEAR_SPAN_MAX`.
    LogWhereFar,
}

/// Returns whether the axis is logarithmic, and the lower and upper end of the axis.
fn ends(scale: Scale, values: impl Iterator<Item = f64> + Clone) -> (bool, f64, f64) {
    let most = values.clone().fold(0.0, f64::max);
    let least = values.clone().filter(|value| *value > 0.0).fold(f64::INFINITY, f64::min);
    let has_zero = values.clone().any(|value| value <= 0.0);
    if most <= 0.0 {
        (false, 0.0, 1.0)
    } else if scale == Scale::LogWhereFar && !has_zero && most / least > LINEAR_SPAN_MAX {
        (true, least / 1.5, most * 1.5)
    } else {
        (false, 0.0, most * 1.08)
    }
}

/// Draws dots for each series over names equally spaced on the x axis; if `joined`, a line connects the dots.
pub(super) fn lines(
    titles: &Titles<'_>,
    names: &[String],
    series: &[Series<Option<f64>>],
    scale: Scale,
    joined: bool,
) -> Result<Plot, ReportError> {
    let (is_log, low, high) =
        ends(scale, series.iter().flat_map(|series| series.values.iter().flatten().copied()));
    let svg = svg(|area| match is_log {
        false => draw_lines(area, titles, names, series, low..high, joined),
        true => draw_lines(area, titles, names, series, (low..high).log_scale(), joined),
    })?;
    Ok(Plot::new(titles, is_log.then_some("y"), series, svg))
}

fn draw_lines<Y>(
    area: &Area<'_>,
    titles: &Titles<'_>,
    names: &[String],
    series: &[Series<Option<f64>>],
    y: Y,
    joined: bool,
) -> Result<(), String>
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    area.fill(&WHITE).map_err(|error| error.to_string())?;
    let places = names.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(52)
        .y_label_area_size(76)
        .build_cartesian_2d((-0.5..places - 0.5).step(0.5), y)
        .map_err(|error| error.to_string())?;
    mesh(&mut chart, titles, names)?;
    let count = series.len();
    for (at, series) in series.iter().enumerate() {
        let style = colour(at).stroke_width(2);
        let beside = if joined { 0.0 } else { DOT_GAP * (at as f64 - (count - 1) as f64 / 2.0) };
        let points =
            || series.values.iter().enumerate().filter_map(|(x, y)| y.map(|y| (x as f64 + beside, y)));
        if joined {
            chart.draw_series(LineSeries::new(points(), style)).map_err(|error| error.to_string())?;
        }
        // Earlier series have larger dots, which remain visible as rings around dots of equal values.
        let radius = if joined { 4 + (count - 1 - at).min(8) as i32 } else { DOT_RADIUS };
        let dots = points().map(|place| Circle::new(place, radius, colour(at).filled()));
        chart.draw_series(dots).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Draws a curve for each series over a numeric x axis of scale `x_scale`.
pub(super) fn curves(
    titles: &Titles<'_>,
    series: &[Series<(f64, f64)>],
    x_scale: Scale,
) -> Result<Plot, ReportError> {
    let points = || series.iter().flat_map(|series| series.values.iter().copied());
    let (is_log, low, high) = ends(x_scale, points().map(|(x, _)| x));
    let (_, bottom, top) = ends(Scale::FromZero, points().map(|(_, y)| y));
    let svg = svg(|area| match is_log {
        false => draw_curves(area, titles, series, low..high, bottom..top),
        true => draw_curves(area, titles, series, (low..high).log_scale(), bottom..top),
    })?;
    Ok(Plot::new(titles, is_log.then_some("x"), series, svg))
}

fn draw_curves<X>(
    area: &Area<'_>,
    titles: &Titles<'_>,
    series: &[Series<(f64, f64)>],
    x: X,
    y: std::ops::Range<f64>,
) -> Result<(), String>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64>,
{
    area.fill(&WHITE).map_err(|error| error.to_string())?;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .margin_right(28)
        .x_label_area_size(52)
        .y_label_area_size(76)
        .build_cartesian_2d(x, y)
        .map_err(|error| error.to_string())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(225, 225, 225))
        .x_desc(titles.x)
        .y_desc(titles.y)
        .x_label_formatter(&|value| number(*value))
        .y_label_formatter(&|value| number(*value))
        .label_style(TEXT)
        .axis_desc_style(TEXT)
        .draw()
        .map_err(|error| error.to_string())?;
    for (at, series) in series.iter().enumerate() {
        let line = LineSeries::new(series.values.iter().copied(), colour(at).stroke_width(2));
        chart.draw_series(line).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Draws grid and labels of a chart with names on its x axis.
fn mesh<X, Y>(
    chart: &mut ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, Y>>,
    titles: &Titles<'_>,
    names: &[String],
) -> Result<(), String>
where
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let name = |at: &f64| {
        let is_place = (at - at.round()).abs() < 1e-6 && *at > -0.5;
        if is_place { names.get(at.round() as usize).cloned().unwrap_or_default() } else { String::new() }
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(RGBColor(225, 225, 225))
        .x_desc(titles.x)
        .y_desc(titles.y)
        .x_labels(names.len() * 2 + 1)
        .x_label_formatter(&name)
        .y_label_formatter(&|value| number(*value))
        .label_style(TEXT)
        .axis_desc_style(TEXT)
        .draw()
        .map_err(|error| error.to_string())
}

pub(super) fn stacked_bars(
    titles: &Titles<'_>,
    names: &[String],
    series: &[Series<f64>],
) -> Result<Plot, ReportError> {
    let totals = (0..names.len()).map(|at| series.iter().map(|series| series.values[at]).sum::<f64>());
    let high = totals.fold(0.0, f64::max).max(1e-9) * 1.08;
    let svg = svg(|area| {
        area.fill(&WHITE).map_err(|error| error.to_string())?;
        let places = names.len() as f64;
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .x_label_area_size(52)
            .y_label_area_size(76)
            .build_cartesian_2d((-0.5..places - 0.5).step(0.5), 0.0..high)
            .map_err(|error| error.to_string())?;
        mesh(&mut chart, titles, names)?;
        let mut below = vec![0.0; names.len()];
        for (at, series) in series.iter().enumerate() {
            let bars = series
                .values
                .iter()
                .zip(&mut below)
                .enumerate()
                .filter(|(_, (value, _))| **value > 0.0)
                .map(|(x, (value, below))| {
                    let from = *below;
                    *below += value;
                    Rectangle::new([(x as f64 - 0.35, from), (x as f64 + 0.35, *below)], colour(at).filled())
                });
            chart.draw_series(bars).map_err(|error| error.to_string())?;
        }
        Ok(())
    })?;
    let legend = series.iter().enumerate().map(|(at, series)| legend(at, &series.name)).collect();
    Ok(Plot { title: titles.title.to_owned(), note: titles.note.to_owned(), svg, legend })
}
