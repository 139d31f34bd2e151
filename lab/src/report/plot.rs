//! Plots as SVG. The background is transparent and all colours are mid-tones with a contrast of at
//! least 3 to 1 on white and on near-black, so a plot reads on light and on dark pages.

use plotters::coord::Shift;
use plotters::prelude::*;

/// Text, axes and whatever is neutral.
pub const GREY: RGBColor = RGBColor(0x7d, 0x84, 0x8e);
/// Colours of series, in their order.
pub const COLOURS: [RGBColor; 9] = [
    RGBColor(0x3b, 0x82, 0xc4),
    RGBColor(0xd2, 0x73, 0x0a),
    RGBColor(0x2f, 0x96, 0x5c),
    RGBColor(0xd6, 0x45, 0x5d),
    RGBColor(0x8b, 0x6f, 0xc0),
    RGBColor(0x1f, 0x90, 0x96),
    RGBColor(0xa8, 0x71, 0x4a),
    RGBColor(0x86, 0x8c, 0x1e),
    RGBColor(0xc0, 0x52, 0xa8),
];
/// What is right.
pub const GOOD: RGBColor = COLOURS[2];
/// What is wrong.
pub const BAD: RGBColor = COLOURS[3];

const FONT: &str = "sans-serif";

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A line or a cloud of points.
#[derive(Debug, Clone)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// The points.
    pub points: Vec<(f64, f64)>,
    /// Whether the points are joined by a line.
    pub line: bool,
}

/// The axes of a plot.
#[derive(Debug, Clone)]
pub struct Axes {
    /// Name and unit of the horizontal axis.
    pub x: String,
    /// Name and unit of the vertical axis.
    pub y: String,
    /// The range of the horizontal axis.
    pub x_range: (f64, f64),
    /// The range of the vertical axis.
    pub y_range: (f64, f64),
    /// Whether both axes are logarithmic.
    pub logarithmic: bool,
}

/// Plots series.
#[must_use]
pub fn series(axes: &Axes, series: &[Series]) -> String {
    svg((800, 440), |area| {
        let (x, y) = (axes.x_range.0..axes.x_range.1, axes.y_range.0..axes.y_range.1);
        let mut builder = ChartBuilder::on(area);
        builder.margin(12).x_label_area_size(44).y_label_area_size(64);
        // The two kinds of axes are two types, so the drawing is a macro.
        macro_rules! draw {
            ($chart:expr) => {{
                let mut chart = $chart?;
                let text = (FONT, 13).into_font().color(&GREY);
                chart
                    .configure_mesh()
                    .axis_style(GREY)
                    .bold_line_style(GREY.mix(0.35))
                    .light_line_style(TRANSPARENT)
                    .label_style(text.clone())
                    .axis_desc_style(text.clone())
                    .x_desc(&axes.x)
                    .y_desc(&axes.y)
                    .x_label_formatter(&|value| label(*value, axes.logarithmic))
                    .y_label_formatter(&|value| label(*value, axes.logarithmic))
                    .draw()?;
                for (number, one) in series.iter().enumerate() {
                    let colour = COLOURS[number % COLOURS.len()];
                    if one.line {
                        chart.draw_series(LineSeries::new(one.points.clone(), colour.stroke_width(2)))?;
                    }
                    let points = one.points.iter().map(|point| Circle::new(*point, 4, colour.filled()));
                    let drawn = chart.draw_series(points)?;
                    drawn.label(&one.name).legend(move |(x, y)| Circle::new((x + 8, y), 4, colour.filled()));
                }
                chart
                    .configure_series_labels()
                    .position(SeriesLabelPosition::UpperLeft)
                    .border_style(GREY.mix(0.5))
                    .label_font(text)
                    .draw()?;
                Ok(())
            }};
        }
        match axes.logarithmic {
            true => draw!(builder.build_cartesian_2d(x.log_scale(), y.log_scale())),
            false => draw!(builder.build_cartesian_2d(x, y)),
        }
    })
}

/// A lane of a timeline.
#[derive(Debug, Clone)]
pub struct Lane {
    /// Its name.
    pub name: String,
    /// Periods: from, to, colour.
    pub spans: Vec<(f64, f64, RGBColor)>,
    /// Moments: when, what, colour.
    pub marks: Vec<(f64, String, RGBColor)>,
}

/// Plots what several actors do at the same time. The legend names the colours.
#[must_use]
pub fn timeline(x: &str, to: f64, lanes: &[Lane], legend: &[(&str, RGBColor)]) -> String {
    let height = 110 + 44 * u32::try_from(lanes.len()).unwrap_or(1);
    svg((800, height), |area| {
        let count = i32::try_from(lanes.len()).unwrap_or(1);
        let mut chart = ChartBuilder::on(area)
            .margin(12)
            .margin_top(34)
            .x_label_area_size(44)
            .y_label_area_size(190)
            .build_cartesian_2d(0.0..to, 0.0..f64::from(count))?;
        let text = (FONT, 13).into_font().color(&GREY);
        chart
            .configure_mesh()
            .disable_y_axis()
            .disable_y_mesh()
            .axis_style(GREY)
            .bold_line_style(GREY.mix(0.35))
            .light_line_style(TRANSPARENT)
            .label_style(text.clone())
            .axis_desc_style(text.clone())
            .x_desc(x)
            .x_label_formatter(&|value| number(*value))
            .draw()?;
        for (row, lane) in lanes.iter().enumerate() {
            let top = f64::from(count - i32::try_from(row).unwrap_or(0));
            for (from, to, colour) in &lane.spans {
                let bar = Rectangle::new([(*from, top - 0.75), (*to, top - 0.35)], colour.filled());
                chart.draw_series(std::iter::once(bar))?;
            }
            for (at, what, colour) in &lane.marks {
                let point = (*at, top - 0.55);
                chart.draw_series(std::iter::once(Circle::new(point, 6, colour.filled())))?;
                let style = (FONT, 12).into_font().color(colour);
                let label = EmptyElement::at(point) + Text::new(what.clone(), (8, -22), style);
                chart.draw_series(std::iter::once(label))?;
            }
            let (left, y) = chart.backend_coord(&(0.0, top - 0.55));
            area.draw(&Text::new(lane.name.clone(), (left - 186, y - 7), text.clone()))?;
        }
        for (number, (name, colour)) in legend.iter().enumerate() {
            let left = 200 + 150 * i32::try_from(number).unwrap_or(0);
            area.draw(&Rectangle::new([(left, 12), (left + 14, 24)], colour.filled()))?;
            area.draw(&Text::new((*name).to_owned(), (left + 20, 11), text.clone()))?;
        }
        Ok(())
    })
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> String {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        draw(&area).and_then(|()| Ok(area.present()?)).expect("text in memory can be written");
    }
    text
}

/// The label of a line of the grid. On a logarithmic axis only 1, 2 and 5 have one: others collide.
fn label(value: f64, logarithmic: bool) -> String {
    let text = number(value);
    if logarithmic && !text.starts_with(['1', '2', '5']) { String::new() } else { text }
}

/// A number as short as it can be.
fn number(value: f64) -> String {
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
