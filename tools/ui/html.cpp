// The page is put together as text; the style sheet below is the only one apart from those inside the charts.
#include "tools/ui/html.h"

#include <fmt/format.h>

#include <cstdlib>

#include "core/check.h"
#include "tools/ui/svg.h"

namespace sinkgrad {
namespace {

constexpr const char* kStyle = R"(
:root{color-scheme:light dark}
body{margin:0 auto;max-width:84rem;padding:1.5rem 1.2rem 4rem;background:#fff;color:#1c2026;
font:16px/1.55 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif}
h1{margin:0;font-size:1.7rem;line-height:1.2}h2{margin:2.4rem 0 .6rem;font-size:1.2rem}
p{max-width:46rem;margin:.6rem 0}.subtitle,figcaption,caption,nav{color:#5a626e;font-size:.9rem}
nav ol{padding-left:1.2rem;columns:2}a{color:#0072b2}
figure{margin:1rem 0;break-inside:avoid}.charts{display:flex;flex-wrap:wrap;gap:.6rem;align-items:flex-start;overflow-x:auto}
svg{max-width:100%;height:auto;border:1px solid #e3e6ea;border-radius:6px}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;margin:1rem 0}caption{text-align:left;padding-bottom:.3rem}
th,td{padding:.3rem .8rem;border-bottom:1px solid #e3e6ea;text-align:left;vertical-align:top}th{border-bottom:2px solid #8b939e}
.number{text-align:right;font-variant-numeric:tabular-nums}
pre{overflow-x:auto;padding:.7rem .9rem;background:#f4f5f7;border-radius:6px;font-size:.85rem;line-height:1.4}summary{cursor:pointer}
.verdict{padding:.5rem .9rem;border-left:5px solid #0072b2;background:#eef5fa;max-width:44rem;margin:.6rem 0}
.good{border-color:#009e73;background:#ebf7f3}.bad{border-color:#d55e00;background:#fdf1ea}
.frame{margin:1rem 0}.frame h3{margin:.4rem 0;font-size:1rem}.slider{display:flex;align-items:center;gap:.8rem;flex-wrap:wrap;margin:1rem 0}
.slider input{width:min(26rem,60vw);accent-color:#0072b2}.slider output{font-weight:600;font-variant-numeric:tabular-nums}
.moving .frame h3{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}
@media screen and (prefers-color-scheme:dark){.slider input{accent-color:#5ab4f0}body{background:#15181d;color:#e4e7eb}.subtitle,figcaption,caption,nav{color:#a3abb6}a{color:#5ab4f0}
svg,th,td{border-color:#2c3139}pre{background:#1f242b}.verdict{background:#1a2733;border-color:#5ab4f0}
.good{background:#172b26;border-color:#35c79b}.bad{background:#33231a;border-color:#ff8f4d}}
@media print{.charts{overflow:visible}body{max-width:none;padding:0;font-size:11pt}h2{break-after:avoid}pre{white-space:pre-wrap}
.slider{display:none}.frame[hidden]{display:block}.moving .frame h3{position:static;clip-path:none;width:auto;height:auto}}
)";

// Without it all frames are shown. The arrow keys move a slider that has the focus.
constexpr const char* kScript = R"(
for (const box of document.querySelectorAll('.frames')) {
  const frames = [...box.querySelectorAll('.frame')], slider = document.createElement('label'), input = document.createElement('input'),
        place = document.createElement('output');
  input.type = 'range'; input.min = 1; input.max = frames.length; input.value = 1;
  slider.className = 'slider'; slider.append(box.dataset.name, input, place); box.prepend(slider); box.classList.add('moving');
  const show = () => {
    frames.forEach((frame, i) => frame.hidden = i + 1 != input.value);
    place.textContent = frames[input.value - 1].querySelector('h3').textContent;
    input.setAttribute('aria-valuetext', place.textContent);
  };
  input.addEventListener('input', show); show();
}
)";

bool is_number(std::string text) {
  if (text.starts_with("\u2212")) text.replace(0, 3, "-");
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return end != text.c_str() && (*end == '\0' || std::string_view(end) == "%" || std::string_view(end).starts_with("e\u2212"));
}

std::string caption_element(const char* element, std::string_view text) {
  return text.empty() ? "" : fmt::format("<{0}>{1}</{0}>\n", element, escape_markup(text));
}

}  // namespace

HtmlPage::HtmlPage(std::string title, std::string subtitle) : title_(std::move(title)), subtitle_(std::move(subtitle)) {}

HtmlPage& HtmlPage::section(std::string_view heading) {
  headings_.emplace_back(heading);
  body_ += fmt::format("<h2 id=\"section-{}\">{}</h2>\n", headings_.size(), escape_markup(heading));
  return *this;
}

HtmlPage& HtmlPage::paragraph(std::string_view text) {
  body_ += fmt::format("<p>{}</p>\n", escape_markup(text));
  return *this;
}

HtmlPage& HtmlPage::verdict(Verdict kind, std::string_view text) {
  const char* style = kind == Verdict::good ? " good" : kind == Verdict::bad ? " bad" : "";
  const char* word = kind == Verdict::good ? "ok" : kind == Verdict::bad ? "failed" : "note";
  body_ += fmt::format("<p class=\"verdict{}\"><strong>{}:</strong> {}</p>\n", style, word, escape_markup(text));
  return *this;
}

HtmlPage& HtmlPage::code(std::string_view text, std::string_view summary) {
  const std::string block = fmt::format("<pre>{}</pre>\n", escape_markup(text));
  body_ += summary.empty() ? block : fmt::format("<details><summary>{}</summary>\n{}</details>\n", escape_markup(summary), block);
  return *this;
}

HtmlPage& HtmlPage::figure(const std::vector<std::string>& charts, std::string_view caption) {
  body_ += "<figure><div class=\"charts\">\n";
  for (const std::string& chart : charts) body_ += chart;
  body_ += fmt::format("</div>\n{}</figure>\n", caption_element("figcaption", caption));
  return *this;
}

HtmlPage& HtmlPage::frames(std::string_view name, const std::vector<HtmlFrame>& frames) {
  has_frames_ = true;
  body_ += fmt::format("<div class=\"frames\" data-name=\"{}\">\n", escape_markup(name));
  for (const HtmlFrame& frame : frames) {
    body_ += fmt::format("<div class=\"frame\"><h3>{}</h3>\n", escape_markup(frame.title));
    figure(frame.charts, frame.caption);
    body_ += "</div>\n";
  }
  body_ += "</div>\n";
  return *this;
}

HtmlPage& HtmlPage::table(const std::vector<std::string>& columns, const std::vector<std::vector<std::string>>& rows, std::string_view caption) {
  std::vector<const char*> style(columns.size(), " class=\"number\"");
  for (const auto& row : rows) {
    require(row.size() == columns.size(), "table: a row requires ", columns.size(), " cells, got ", row.size());
    for (size_t i = 0; i < row.size(); ++i)
      if (!row[i].empty() && !is_number(row[i])) style[i] = "";
  }
  body_ += fmt::format("<div class=\"wide\"><table>{}<thead><tr>", caption_element("caption", caption));
  for (size_t i = 0; i < columns.size(); ++i) body_ += fmt::format("<th scope=\"col\"{}>{}</th>", style[i], escape_markup(columns[i]));
  body_ += "</tr></thead>\n<tbody>\n";
  for (const auto& row : rows) {
    body_ += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) body_ += fmt::format("<td{}>{}</td>", style[i], escape_markup(row[i]));
    body_ += "</tr>\n";
  }
  body_ += "</tbody></table></div>\n";
  return *this;
}

std::string HtmlPage::str() const {
  std::string contents;
  for (size_t i = 0; headings_.size() >= 4 && i < headings_.size(); ++i)
    contents += fmt::format("<li><a href=\"#section-{}\">{}</a></li>\n", i + 1, escape_markup(headings_[i]));
  if (!contents.empty()) contents = fmt::format("<nav aria-label=\"Contents\"><ol>\n{}</ol></nav>\n", contents);
  const std::string title = escape_markup(title_);
  const std::string subtitle = subtitle_.empty() ? "" : fmt::format("<p class=\"subtitle\">{}</p>\n", escape_markup(subtitle_));
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<header><h1>{}</h1>\n{}</header>\n{}<main>\n{}</main>\n{}</body>\n</html>\n",
      title, kStyle, title, subtitle, contents, body_, has_frames_ ? fmt::format("<script>{}</script>\n", kScript) : "");
}

}  // namespace sinkgrad
