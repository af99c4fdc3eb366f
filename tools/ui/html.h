// One self-contained page: headings, text, charts, tables. Nothing fetched, light and dark, printable; all text is escaped. Readable without
// scripts: the only one is a slider over frames, which otherwise stand one after another.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace sinkgrad {

enum class Verdict { good, bad, note };

/// One of several views of the same thing, such as the state after a half-step.
struct HtmlFrame {
  std::string title;
  std::vector<std::string> charts;
  std::string caption{};
};

class HtmlPage {
 public:
  /// `subtitle` says where the page comes from: command, seed, device, version.
  explicit HtmlPage(std::string title, std::string subtitle = "");

  /// Starts a section; sections are listed at the top once there are four.
  HtmlPage& section(std::string_view heading);
  HtmlPage& paragraph(std::string_view text);
  /// A coloured box with a word in front ("ok", "failed", "note"): readable without colours too.
  HtmlPage& verdict(Verdict kind, std::string_view text);
  /// Text kept as it is, such as a command or a configuration; folded away behind `summary` when that is given.
  HtmlPage& code(std::string_view text, std::string_view summary = {});
  /// Charts made by svg.h, side by side where they fit, with a caption (may be empty).
  HtmlPage& figure(const std::vector<std::string>& charts, std::string_view caption = {});
  /// Frames with a slider; `name` says what it moves through, such as "Half-step". Without scripts and in print all are there.
  HtmlPage& frames(std::string_view name, const std::vector<HtmlFrame>& frames);
  /// Columns of numbers are aligned at the right. Throws Error when a row has another length than `columns`.
  HtmlPage& table(const std::vector<std::string>& columns, const std::vector<std::vector<std::string>>& rows, std::string_view caption = {});

  /// The whole page.
  std::string str() const;

 private:
  std::string title_, subtitle_, body_;
  std::vector<std::string> headings_;
  bool has_frames_ = false;
};

}  // namespace sinkgrad
