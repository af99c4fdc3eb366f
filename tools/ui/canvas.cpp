// The style sheet names each colour twice, for light and for dark; CSS variables would be shorter, but many SVG viewers ignore them.
#include "tools/ui/canvas.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace sinkgrad {
namespace {

constexpr const char* kFont = "font-family=\"system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif\"";

// Okabe and Ito's colours, the pale ones darkened on white and the dark ones lightened on black.
constexpr const char* kLight[kPaletteSize] = {"#0072b2", "#d55e00", "#009e73", "#b5588f", "#c98500", "#3a97cd", "#555555"};
constexpr const char* kDark[kPaletteSize] = {"#5ab4f0", "#ff8f4d", "#35c79b", "#e79fca", "#f0b93a", "#9ad6fa", "#b8bcc4"};

std::string palette(const char* const* colors) {
  std::string css;
  for (int i = 0; i < kPaletteSize; ++i) css += fmt::format(".sg .l{0}{{stroke:{1}}}.sg .f{0}{{fill:{1}}}", i, colors[i]);
  return css;
}

std::string style_sheet() {
  static const std::string sheet = fmt::format(
      "<style>.sg .bg{{fill:#fff}}.sg text{{fill:#1c2026;font-size:12px}}.sg .title{{font-size:15px;font-weight:600}}.sg .small{{font-size:11px}}"
      ".sg .small,.sg .tick{{fill:#5a626e}}.sg .middle{{text-anchor:middle}}.sg .end{{text-anchor:end}}.sg .grid{{stroke:#e3e6ea}}"
      ".sg .axis{{stroke:#8b939e}}.sg .reference{{stroke:#5a626e;stroke-dasharray:2 3}}.sg .curve{{fill:none;stroke-width:1.8;stroke-linejoin:round}}"
      ".sg .dashed{{stroke-dasharray:4 2.5;stroke-width:1.3}}.sg .band{{fill-opacity:.18}}.sg .cross{{fill:none;stroke-width:1.6}}.sg "
      ".empty{{fill:#e9ebee}}"
      ".sg .halo{{stroke:#fff;stroke-width:3px;paint-order:stroke}}.sg .hatch{{stroke:#8b939e}}.sg .cells{{image-rendering:pixelated}}.sg "
      ".box{{fill:#f4f5f7;stroke:#8b939e}}.sg "
      ".leaf{{fill:#fff;stroke-dasharray:3 2}}.sg .half{{fill:#eef5fa}}.sg .oncell{{fill:#fff}}.sg .oncell.pale{{fill:#111}}{}"
      "@media screen and (prefers-color-scheme:dark){{.sg .bg{{fill:#15181d}}.sg text{{fill:#e4e7eb}}.sg .small,.sg .tick{{fill:#a3abb6}}"
      ".sg .grid{{stroke:#2c3139}}.sg .axis{{stroke:#767e8a}}.sg .reference{{stroke:#a3abb6}}.sg .empty{{fill:#2c3139}}.sg "
      ".halo{{stroke:#15181d}}.sg .box{{fill:#1f242b}}.sg .leaf{{fill:#15181d}}.sg .half{{fill:#1a2733}}"
      ".sg .oncell{{fill:#fff}}.sg .oncell.pale{{fill:#111}}{}}}</style>",
      palette(kLight), palette(kDark));
  return sheet;
}

/// The length of the well-formed UTF-8 character at the front, 0 if there is none.
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned lead = byte(0);
  const size_t length = lead < 0x80 ? 1 : lead >= 0xC2 && lead < 0xE0 ? 2 : lead >= 0xE0 && lead < 0xF0 ? 3 : lead >= 0xF0 && lead < 0xF5 ? 4 : 0;
  for (size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  // Overlong forms, surrogates and numbers beyond U+10FFFF.
  const unsigned second = byte(1);
  if ((lead == 0xE0 && second < 0xA0) || (lead == 0xED && second >= 0xA0) || (lead == 0xF0 && second < 0x90) || (lead == 0xF4 && second >= 0x90))
    return 0;
  return length;
}

std::string with_true_minus(std::string text) {
  for (size_t at = 0; (at = text.find('-', at)) != std::string::npos;) text.replace(at, 1, "\u2212");
  return text;
}

/// 10 to the power of `exponent`: 0.001 .. 10000 written out, others with raised digits.
std::string power_of_ten(int exponent) {
  if (exponent >= -3 && exponent <= 4) return fmt::format("{:g}", std::pow(10.0, exponent));
  static constexpr const char* kRaised[] = {"\u2070", "\u00b9", "\u00b2", "\u00b3", "\u2074", "\u2075", "\u2076", "\u2077", "\u2078", "\u2079"};
  std::string text = exponent < 0 ? "10\u207b" : "10";
  for (char digit : std::to_string(std::abs(exponent))) text += kRaised[digit - '0'];
  return text;
}

}  // namespace

std::string escape_markup(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const size_t length = character_length(text);
    const char c = text[0];
    if (length == 0 || (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t')) {
      escaped += "\ufffd";
    } else if (c == '&') {
      escaped += "&amp;";
    } else if (c == '<') {
      escaped += "&lt;";
    } else if (c == '>') {
      escaped += "&gt;";
    } else if (c == '"') {
      escaped += "&quot;";
    } else if (c == '\'') {
      escaped += "&#39;";
    } else {
      escaped += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return escaped;
}

std::string format_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "\u221e" : "\u2212\u221e";
  return with_true_minus(fmt::format("{:.4g}", value));
}

double text_width(std::string_view text, double size) {
  const auto characters = std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
  return static_cast<double>(characters) * size * 0.6;
}

void Canvas::text(double x, double y, std::string_view style, std::string_view content) {
  add("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", style, x, y, escape_markup(content));
}

void Canvas::line(double x1, double y1, double x2, double y2, std::string_view style) {
  add("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", style, x1, y1, x2, y2);
}

void Canvas::rectangle(double x, double y, double width, double height, std::string_view style, std::string_view tooltip) {
  add("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"", style, x, y, std::max(width, 0.0), std::max(height, 0.0));
  tooltip.empty() ? add("/>\n") : add("><title>{}</title></rect>\n", escape_markup(tooltip));
}

double Canvas::paragraph(double x, double y, double width, std::string_view content) {
  std::istringstream words{std::string(content)};
  std::string line;
  const auto flush = [&] {
    text(x, y += 15, "small", line);
    line.clear();
  };
  for (std::string word; words >> word; line += (line.empty() ? "" : " ") + word)
    if (!line.empty() && text_width(line + " " + word, 10) > width) flush();
  if (!line.empty()) flush();
  return y;
}

std::string Canvas::finish(std::string_view title, std::string_view description, double width, double height) const {
  const std::string name = escape_markup(title);
  constexpr double kReadable = 0.75;  // pages shrink charts to narrow screens, but not until their labels are too small
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"sg\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {:.0f} {:.0f}\" width=\"{:.0f}\" "
      "height=\"{:.0f}\" style=\"min-width:{:.0f}px\" {}>\n<title>{}</title>\n<desc>{}</desc>\n{}\n<rect class=\"bg\" width=\"100%\" "
      "height=\"100%\"/>\n{}</svg>\n",
      name, width, height, width, height, kReadable * width, kFont, name, escape_markup(description), style_sheet(), body_);
}

Axis::Axis(double low, double high, bool logarithmic, double first_pixel, double last_pixel)
    : low_(low), high_(high), logarithmic_(logarithmic), first_pixel_(first_pixel), last_pixel_(last_pixel) {
  if (!(low_ <= high_)) low_ = high_ = 1;  // nothing to show
  if (high_ - low_ <= 1e-9 * std::max(std::abs(low_), std::abs(high_)) || low_ == high_) {
    const double margin = low_ == 0 ? 1 : std::abs(low_) / 20;
    low_ = logarithmic ? low_ / 2 : low_ - margin;
    high_ = logarithmic ? high_ * 2 : high_ + margin;
  }
}

double Axis::operator()(double value) const {
  const double part = logarithmic_ ? std::log(value / low_) / std::log(high_ / low_) : (value - low_) / (high_ - low_);
  return first_pixel_ + part * (last_pixel_ - first_pixel_);
}

bool Axis::can_show(double value) const { return value >= low_ && value <= high_; }

std::vector<Tick> Axis::ticks(int target, bool integers) const {
  std::vector<Tick> ticks;
  const double decades = logarithmic_ ? std::log10(high_ / low_) : 0;
  if (decades > 0.8) {
    const int first = static_cast<int>(std::floor(std::log10(low_))), last = static_cast<int>(std::ceil(std::log10(high_)));
    const int every = std::max(1, static_cast<int>(std::ceil(decades / target)));
    for (int exponent = first; exponent <= last; ++exponent) {
      const double power = std::pow(10.0, exponent);
      if (exponent % every == 0 && can_show(power)) ticks.push_back({power, power_of_ten(exponent)});
      for (int factor : {2, 5})
        if (decades < 2.5 && can_show(factor * power)) ticks.push_back({factor * power, format_number(factor * power)});
    }
    return ticks;
  }
  const double raw = (high_ - low_) / target, power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = power * (raw <= power ? 1 : raw <= 2 * power ? 2 : raw <= 5 * power ? 5 : 10);
  if (integers) step = std::max(step, 1.0);
  const int decimals = std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
  const double largest = std::max(std::abs(low_), std::abs(high_));
  const bool alike = largest >= 1e3 * step;  // in the digits of format_number
  const bool written_out = (decimals <= 6 || alike) && largest < 1e7;
  // The tolerance keeps a tick at an end of the range in spite of rounding.
  for (double i = std::ceil(low_ / step - 1e-6); i <= high_ / step + 1e-6; ++i)
    ticks.push_back({i * step, written_out ? with_true_minus(fmt::format("{:.{}f}", i * step + 0.0, decimals)) : format_number(i * step)});
  return ticks;
}

double draw_legend(Canvas& canvas, double left, double y, double width, const std::vector<LegendEntry>& entries) {
  constexpr double kGap = 18, kRow = 18;
  double x = left;
  bool any = false;
  for (const LegendEntry& entry : entries) {
    if (entry.label.empty()) continue;
    const double sample = entry.box ? 12 : 24, needed = sample + 6 + text_width(entry.label, 12);
    if (any && x + needed > left + width) {
      x = left;
      y += kRow;
    }
    any = true;
    if (entry.box) canvas.rectangle(x, y + 4, sample, 12, fmt::format("f{}", entry.color));
    if (entry.line) canvas.line(x, y + 10, x + sample, y + 10, fmt::format("curve l{}{}", entry.color, entry.dashed ? " dashed" : ""));
    if (entry.points) canvas.add("<circle class=\"f{}\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.6\"/>\n", entry.color, x + sample / 2, y + 10);
    canvas.text(x + sample + 6, y + 14, "label", entry.label);
    x += needed + kGap;
  }
  return any ? y + kRow : y;
}

}  // namespace sinkgrad
