//! Figures as CSV and JSON, plots as SVG, pages as Markdown.
