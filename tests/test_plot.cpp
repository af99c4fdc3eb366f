// Charts and pages: well-formed whatever the text and the numbers, and showing the values they were given.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <regex>

#include "core/check.h"
#include "core/file.h"
#include "program.h"
#include "tools/ui/canvas.h"
#include "tools/ui/curves.h"
#include "tools/ui/html.h"
#include "tools/ui/svg.h"

using namespace sinkgrad;
using Catch::Matchers::Contains;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

/// What is wrong with a piece of XML: tags that do not match, stray markup characters, coordinates that are not numbers. Empty if nothing is.
std::string malformed(std::string text) {
  static const std::regex style("<style>[^<]*</style>"), tag(R"re(<(/?)([a-z0-9]+)((?: [a-zA-Z0-9-]+="[^"<]*")*) ?(/?)>)re");
  static const std::regex entity("&(amp|lt|gt|quot|#39);");
  text = std::regex_replace(text, style, "");
  std::vector<std::string> open;
  std::string rest;
  auto at = text.cbegin();
  for (std::sregex_iterator it(text.cbegin(), text.cend(), tag), end; it != end; ++it) {
    rest.append(at, (*it)[0].first);
    at = (*it)[0].second;
    const std::string name = (*it)[2];
    if (std::regex_search((*it)[3].str(), std::regex("=\"[^\"]*(nan|inf)[^\"]*\"")) && (*it)[3].str().find("aria-label") == std::string::npos)
      return "not a number in " + (*it)[0].str();
    if ((*it)[1].length()) {
      if (open.empty() || open.back() != name) return "unexpected </" + name + ">";
      open.pop_back();
    } else if ((*it)[4].length() == 0 && name != "meta") {
      open.push_back(name);
    }
  }
  rest.append(at, text.cend());
  rest = std::regex_replace(rest, entity, "");
  if (!open.empty()) return "<" + open.back() + "> is not closed";
  const size_t stray = rest.find_first_of("<>&");
  return stray == std::string::npos ? "" : "stray markup: " + rest.substr(stray, 40);
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

const std::string kHostile = "<b>\"x\" & 'y'\x01\xff</b>";

/// A folder with one subfolder per run.
struct RunFolder : TemporaryFolder {
  void add(const std::string& name, int iterations, int seed, const std::vector<double>& losses) const {
    std::filesystem::create_directory(path / name);
    const nlohmann::json config{{"name", "mnist"}, {"seed", seed}, {"model", {{"name", "vit"}, {"iterations", iterations}}}};
    MetricsWriter writer = MetricsWriter::create(path / name / "metrics.jsonl", {{"config", config}});
    for (size_t i = 0; i < losses.size(); ++i) {
      const auto step = static_cast<int64_t>(i + 1);
      for (const char* split : {"train", "test"})
        writer.write(
            {.step = step * 10, .epoch = static_cast<double>(step), .split = split, .values = {{"loss", losses[i]}, {"acc", 1 - losses[i]}}});
    }
  }
};

}  // namespace

TEST_CASE("markup is escaped, and what XML cannot hold is replaced") {
  CHECK(escape_markup("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#39;");
  CHECK(escape_markup("d\u00e9j\u00e0 \u2212 \U0001f600") == "d\u00e9j\u00e0 \u2212 \U0001f600");
  CHECK(escape_markup(std::string("\x00\x1b\n", 3)) == "\ufffd\ufffd\n");
  for (const char* broken : {"\xff", "\xc3", "\xe2\x88", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80"})
    CHECK_THAT(escape_markup(broken), Catch::Matchers::StartsWith("\ufffd"));
}

TEST_CASE("ticks are round, inside the range and written without noise") {
  const auto labels = [](const Axis& axis, int target, bool integers = false) {
    std::string text;
    for (const Tick& tick : axis.ticks(target, integers)) {
      CHECK(axis.can_show(tick.value));
      text += (text.empty() ? "" : " ") + tick.label;
    }
    return text;
  };
  CHECK(labels(Axis(0, 1, false, 0, 1), 5) == "0.0 0.2 0.4 0.6 0.8 1.0");
  CHECK(labels(Axis(-0.3, 0.31, false, 0, 1), 6) == "\u22120.2 0.0 0.2");
  CHECK(labels(Axis(0, 2, false, 0, 1), 8, true) == "0 1 2");
  CHECK(labels(Axis(1e-7, 10, true, 0, 1), 4) == "10\u207b\u2076 10\u207b\u2074 0.01 1");
  CHECK(labels(Axis(0.9, 30, true, 0, 1), 6) == "1 2 5 10 20");
  CHECK(labels(Axis(0.99999994, 1.00000016, false, 0, 1), 3) == "1.0000000 1.0000001");
  CHECK(Axis(1, 100, true, 0, 10)(10) == Approx(5));
  CHECK(Axis(0, 10, false, 100, 0)(2.5) == Approx(75));
  CHECK(labels(Axis(3, 3, false, 0, 1), 4).find('3') != std::string::npos);
}

TEST_CASE("every chart is well-formed with hostile text and numbers") {
  const std::vector<std::vector<double>> values = {{},
                                                   {1},
                                                   {0, 0, 0},
                                                   {kNan, kNan},
                                                   {kNan, 1, kNan, kInfinity, 2, 3, kNan},
                                                   {-1, 0, 1e-320, 1e300, -kInfinity},
                                                   {1e308, -1e308},
                                                   {5, 5, 5.0000000001}};
  for (const auto& y : values) {
    Series series{.label = kHostile, .x = {}, .y = y};
    for (size_t i = 0; i < y.size(); ++i) series.x.push_back(static_cast<double>(i));
    series.low = series.high = y;
    for (const bool logarithmic : {false, true}) {
      LineChart line{.title = kHostile, .description = kHostile, .x_label = kHostile, .y_label = kHostile, .series = {series, series}};
      line.references = {{0.5, kHostile}};
      line.log_y = line.log_x = logarithmic;
      line.note = kHostile;
      CHECK(malformed(line_chart(line)) == "");
      BarChart bar{.title = kHostile,
                   .description = kHostile,
                   .x_label = kHostile,
                   .y_label = kHostile,
                   .categories = std::vector<std::string>(y.size(), kHostile),
                   .series = {series}};
      bar.log_y = logarithmic;
      CHECK(malformed(bar_chart(bar)) == "");
    }
    if (y.empty()) continue;
    HeatMap map{.title = kHostile, .description = kHostile, .rows = 1, .columns = y.size(), .values = y};
    map.column_labels.assign(y.size(), kHostile);
    const LinkChart link{.title = kHostile,
                         .description = kHostile,
                         .from_label = kHostile,
                         .to_label = kHostile,
                         .from = {0, 0},
                         .to = std::vector<double>(2 * y.size(), 1e300 / 4),
                         .weights = y,
                         .note = kHostile};
    CHECK(malformed(link_chart(link)) == "");
    map.row_axis = map.column_axis = map.note = kHostile;
    map.row_sums = map.column_sums = true;
    map.row_reference = 1;
    for (const bool diverging : {false, true}) {
      map.diverging = diverging;
      CHECK(malformed(heat_map(map)) == "");
    }
  }
}

TEST_CASE("a chart stands alone: named for screen readers, both colour schemes, no scripts, ids or links") {
  const std::string svg =
      line_chart({.title = "Loss", .description = "falls", .x_label = "epoch", .y_label = "loss", .series = {{"a", {1, 2}, {2, 1}}}});
  for (const char* part :
       {"role=\"img\"", "<title>Loss</title>", "<desc>falls</desc>", "prefers-color-scheme:dark", "xmlns=\"http://www.w3.org/2000/svg\""})
    CHECK_THAT(svg, Contains(part));
  for (const char* part : {"<script", " id=", "href", "url("}) CHECK_THAT(svg, !Contains(part));
}

TEST_CASE("a line breaks at NaN, marks the place, and a lone point stays visible") {
  Series series{.label = "a", .x = {}, .y = {}, .points = false};
  for (int i = 0; i < 50; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == 10 || i == 11 || i == 13 ? kNan : i);
  }
  const std::string svg = line_chart({.title = "t", .description = "", .x_label = "", .y_label = "", .series = {series}});
  std::smatch path;
  REQUIRE(std::regex_search(svg, path, std::regex("<path class=\"curve l0\" d=\"([^\"]*)\"")));
  CHECK(count(path[1], "M") == 3);
  CHECK(count(path[1], "L") == 47 - 3);
  CHECK(count(svg, "class=\"cross") == 2);  // one for 10 and 11, one for 13
  CHECK(count(svg, "<circle") == 1);        // the point at 12
  LineChart logarithmic{.title = "t", .description = "", .x_label = "", .y_label = "", .series = {{"a", {1, 2, 3}, {1, 0, -2}}}};
  logarithmic.log_y = true;
  CHECK_THAT(line_chart(logarithmic), Contains("2 values are not above 0"));
}

TEST_CASE("charts refuse lengths that do not match") {
  CHECK_THROWS_WITH(line_chart({.title = "", .description = "", .x_label = "", .y_label = "", .series = {{"a", {1, 2}, {1}}}}),
                    Contains("'a' requires 2 values, got 1"));
  CHECK_THROWS_WITH(bar_chart({.title = "", .description = "", .x_label = "", .y_label = "", .categories = {"x"}, .series = {{"a", {}, {1, 2}}}}),
                    Contains("requires 1 values, got 2"));
  CHECK_THROWS_WITH(heat_map({.title = "", .description = "", .rows = 2, .columns = 2, .values = {1}}), Contains("got 2 x 2 and 1 values"));
  CHECK_THROWS_AS(heat_map({.title = "", .description = "", .rows = 0, .columns = 3, .values = {}}), Error);
}

TEST_CASE("links are as thick as their weights, and those up to the least are left out") {
  const std::string svg = link_chart({.title = "",
                                      .description = "",
                                      .from_label = "query",
                                      .to_label = "key",
                                      .from = {0, 0, 0, 1},
                                      .to = {1, 0, 1, 1},
                                      .weights = {0.4, 0.2, 1e-13, kNan},
                                      .least = 1e-12});
  CHECK(count(svg, "<line class=\"curve l6\"") == 2);
  CHECK_THAT(svg, Contains("stroke-width:7.00") && Contains("stroke-width:3.50") && Contains("<title>query 0, key 1: 0.2</title>"));
  CHECK_THROWS_WITH(link_chart({.title = "", .description = "", .from = {0, 0}, .to = {1}, .weights = {1}}), Contains("got 2, 1 and 1 numbers"));
  CHECK_THROWS_WITH(link_chart({.title = "", .description = "", .from = {0, kNan}, .to = {1, 1}, .weights = {1}}), Contains("finite"));
}

TEST_CASE("with equal axes a square is square, wide or tall, and charts of one reach share their scale") {
  // Width and height in pixels of a rectangle of 1 by `tall`.
  const auto drawn = [](double tall, double reach) {
    const std::string svg =
        line_chart({.title = "t", .description = "", .series = {{"a", {0, 1, 1}, {0, 0, tall}}}, .equal_axes = true, .reach = reach});
    std::smatch path;
    REQUIRE(std::regex_search(svg, path, std::regex("d=\"M([0-9.]+) ([0-9.]+)L([0-9.]+) [0-9.]+L[0-9.]+ ([0-9.]+)\"")));
    return std::pair(std::stod(path[3]) - std::stod(path[1]), std::stod(path[2]) - std::stod(path[4]));
  };
  for (const double tall : {0.2, 1.0, 5.0}) {
    const auto [width, height] = drawn(tall, 0);
    CHECK(height / width == Approx(tall).epsilon(0.02));
    CHECK(drawn(tall, 6).first == Approx(drawn(1, 6).first).margin(0.2));
  }
  CHECK(drawn(1, 6).first < drawn(1, 0).first / 3);
}

TEST_CASE("a heat map shows values and sums, hatches NaN, and averages blocks of large matrices") {
  HeatMap map{.title = "P", .description = "", .rows = 2, .columns = 3, .values = {0.5, 0.25, 0.25, 1, -2, kNan}};
  map.row_sums = map.column_sums = true;
  const std::string svg = heat_map(map);
  for (const char* part : {"<title>0, 1: 0.25</title>", "row 0: sum 1<", "column 0: sum 1.5<", "column 1: sum \u22121.75<", "row 1: sum NaN<"})
    CHECK_THAT(svg, Contains(part));
  CHECK(count(svg, "class=\"empty\"") == 1);
  HeatMap large{.title = "P", .description = "", .rows = 3, .columns = 130, .values = std::vector<double>(390, 0.5)};
  large.row_sums = large.column_sums = true;
  const std::string averaged = heat_map(large);
  CHECK(count(averaged, "<rect fill=") - 32 == 3 * 44);  // 32 steps of the colour scale
  CHECK_THAT(averaged, Contains("mean of a block of 1 x 3 values of the 3 x 130 matrix") && Contains("row 0: sum 65<") &&
                           Contains("column 0: sum 1.5<") && Contains("<title>2, 129: 0.5</title>"));
}

TEST_CASE("sums that vanish but for rounding look like nothing") {
  HeatMap map{.title = "", .description = "", .rows = 1, .columns = 2, .values = {1, -1 + 1e-15}};
  map.row_sums = true;
  CHECK(std::regex_search(heat_map(map), std::regex(R"re(width="0\.0"[^>]*><title>row 0: sum)re")));
}

TEST_CASE("a page is one well-formed file without scripts or links elsewhere") {
  HtmlPage page(kHostile, kHostile);
  for (const char* heading : {"One", "Two", "Three", "<four>"}) page.section(heading);
  page.paragraph(kHostile).verdict(Verdict::bad, kHostile).code(kHostile).code(kHostile, kHostile);
  page.figure({line_chart({.title = "t", .description = "", .x_label = "", .y_label = "", .series = {{"a", {1}, {1}}}})}, kHostile);
  page.table({kHostile, "number"}, {{kHostile, "\u22121e\u22123"}, {"b", ""}, {"c", "12%"}}, kHostile);
  const std::string html = page.str();
  CHECK(malformed(html.substr(html.find('\n') + 1)) == "");
  CHECK_THAT(
      html, Contains("<a href=\"#section-4\">&lt;four&gt;</a>") && Contains("<strong>failed:</strong>") && Contains("<td class=\"number\">12%</td>"));
  CHECK_THAT(html, !Contains("<td class=\"number\">b") && !Contains("<script") && !Contains("src=") && !Contains("@import"));
  CHECK(count(html, "http") == 1);  // the name space of SVG
  CHECK_THROWS_WITH(page.table({"a", "b"}, {{"1"}}), Contains("requires 2 cells, got 1"));
}

TEST_CASE("runs that differ only in the seed are joined: median and least to greatest") {
  const RunFolder folder;
  folder.add("a1", 1, 1, {0.9, 0.5});
  folder.add("a2", 1, 2, {0.7, 0.1});
  folder.add("a3", 1, 3, {0.8, 0.3, 0.2});
  folder.add("b1", 5, 1, {0.6, 0.4});
  const std::vector<Run> runs = load_runs({folder.path.string()});
  REQUIRE(runs.size() == 4);
  const std::vector<RunGroup> groups = group_runs(runs, true);
  REQUIRE(groups.size() == 2);
  CHECK(groups[0].label == "mnist, iterations 1");
  CHECK(groups[1].label == "mnist, iterations 5");
  CHECK(groups[0].runs.size() == 3);
  const Curve curve = learning_curve(groups[0], "loss", "test", CurveAxis::step);
  CHECK(curve.x == std::vector<double>{10, 20, 30});
  CHECK(curve.median == std::vector<double>{0.8, 0.3, 0.2});
  CHECK(curve.low == std::vector<double>{0.7, 0.1, 0.2});
  CHECK(curve.high == std::vector<double>{0.9, 0.5, 0.2});
  CHECK(group_runs(runs, false).size() == 4);
  CHECK(group_runs(runs, false)[1].label == "mnist, iterations 1, seed 2");
  CHECK(metric_names(runs) == std::vector<std::string>{"acc", "loss"});
  const LineChart chart = learning_curves(groups, "loss", {"train", "test"}, CurveAxis::epoch, false);
  CHECK(chart.series.size() == 4);
  CHECK(chart.series[0].dashed);
  CHECK(chart.series[0].color == chart.series[1].color);
  CHECK(chart.series[0].label == "mnist, iterations 1, train (3 seeds)");
  CHECK(chart.series[2].low.empty());
  CHECK_THROWS_AS(learning_curves(groups, "f1", {"test"}, CurveAxis::epoch, false), InputError);
}

TEST_CASE("what differs among groups is listed, the seed only where each run stands alone") {
  const RunFolder folder;
  folder.add("a1", 1, 1, {0.5});
  folder.add("a2", 1, 2, {0.5});
  folder.add("b1", 5, 3, {0.4});
  const std::vector<Run> runs = load_runs({folder.path.string()});
  using Rows = std::vector<std::vector<std::string>>;
  CHECK(differing_options(group_runs(runs, true)) == Rows{{"model.iterations", "1", "5"}});
  CHECK(differing_options(group_runs(runs, false)) == Rows{{"model.iterations", "1", "1", "5"}, {"seed", "1", "2", "3"}});
  CHECK(differing_options(group_runs({runs[0]}, true)).empty());
  std::vector<Run> bare = {runs[0], runs[2]};
  bare[1].config.erase("model");
  CHECK(differing_options(group_runs(bare, true)) == Rows{{"model.iterations", "1", ""}, {"model.name", "vit", ""}, {"seed", "1", "3"}});
}

TEST_CASE("the page of two groups has medians with their ranges and the differences between the two") {
  const RunFolder folder;
  folder.add("a1", 1, 1, {0.9, 0.5});
  folder.add("a2", 1, 2, {0.7, 0.1});
  folder.add("a3", 1, 3, {0.8, 0.3});
  folder.add("b1", 5, 1, {0.6, 0.7});
  const std::string out = folder / "page.html";
  REQUIRE(run("plot " + folder.path.string() + " --group-seeds --split test --out " + out).code == 0);
  const std::string page = read_file(out, 1 << 20);
  CHECK_THAT(page, Contains("<td>mnist, iterations 1</td><td class=\"number\">3</td><td>test</td><td class=\"number\">0.3</td>"
                            "<td class=\"number\">2</td><td>0.3 (0.1 to 0.5)</td>"));
  CHECK_THAT(page, Contains("<td>second \u2212 first</td><td class=\"number\"></td><td>test</td><td class=\"number\">0.3</td>"
                            "<td class=\"number\"></td><td>0.4</td>"));  // least losses 0.3 and 0.6, last ones 0.3 and 0.7
  CHECK_THAT(page, Contains("<td class=\"number\">\u22120.3</td><td class=\"number\"></td><td>\u22120.4</td>"));  // accuracies, the other way round
  CHECK_THAT(page, Contains("<td>model.iterations</td><td class=\"number\">1</td><td class=\"number\">5</td>"));
  REQUIRE(run("plot " + folder.path.string() + " --split test --out " + out).code == 0);
  CHECK_THAT(read_file(out, 1 << 20), !Contains("second \u2212 first") && Contains("<td>seed</td>"));
}

TEST_CASE("values that are not finite are counted, not hidden; of repeated records the last counts; long runs are thinned") {
  const RunFolder folder;
  std::vector<double> losses(5000, 0.5);
  losses[4999] = kNan;
  folder.add("long", 1, 1, losses);
  {
    MetricsWriter writer = MetricsWriter::resume(folder.path / "long" / "metrics.jsonl", 50000);
    writer.write({.step = 10, .epoch = 1, .split = "test", .values = {{"loss", 9.5}}});
  }
  const std::vector<Run> runs = load_runs({(folder.path / "long").string()});
  const std::vector<RunGroup> groups = group_runs(runs, false);
  const Curve curve = learning_curve(groups[0], "loss", "test", CurveAxis::step);
  CHECK(curve.nonfinite == 1);
  CHECK(curve.averaged);
  CHECK(curve.x.size() <= 600);
  CHECK(curve.median[0] == Approx((9.5 + 8 * 0.5) / 9));
  CHECK_THAT(learning_curves(groups, "loss", {"test"}, CurveAxis::step, false).note,
             Contains("averaged") && Contains("1 measured value is not finite"));
  CHECK_THROWS_WITH(load_runs({(folder.path / "absent").string()}), Contains("absent"));
  std::filesystem::remove_all(folder.path / "long");
  CHECK_THROWS_WITH(load_runs({folder.path.string()}), Contains("requires a run folder with metrics.jsonl"));
}

TEST_CASE("cells can be one picture, and absent lines leave the sums of the others alone") {
  HeatMap map{.title = "t", .description = "d", .rows = 3, .columns = 2, .values = {1, 2, kNan, kNan, 3, 5}};
  map.row_sums = map.column_sums = true;
  const std::string cells = heat_map(map);
  CHECK_THAT(cells, Contains("column 0: sum 4<") && Contains("column 1: sum 7<") && Contains("row 2: sum 8<") && Contains("hatch"));
  map.values[3] = 7;  // one NaN among numbers is a fault, not an absence
  CHECK_THAT(heat_map(map), Contains("column 0: sum NaN") && Contains("row 1: sum NaN"));

  HeatMap large{.title = "t", .description = "d", .rows = 60, .columns = 60, .values = std::vector<double>(3600, 0.5)};
  large.row_sums = large.column_sums = true;
  std::fill_n(large.values.begin() + 60, 60, kNan);
  const std::string all = heat_map(large);
  large.picture = true;
  const std::string picture = heat_map(large);
  CHECK(malformed(picture) == "");
  CHECK(count(picture, "<image ") == 1);
  CHECK(count(all, "<image ") == 0);
  CHECK(20 * picture.size() < all.size());
  // Matrices beyond 64 lines: the mean of a block is that of its present lines.
  HeatMap blocks{.title = "t", .description = "d", .rows = 128, .columns = 1, .values = std::vector<double>(128, 2.0)};
  blocks.values[5] = kNan;
  CHECK_THAT(heat_map(blocks), Contains("4, 0: 2<"));
}

TEST_CASE("frames stand one after another, and bring the only script") {
  HtmlPage page("p");
  page.paragraph("text");
  CHECK_THAT(page.str(), !Contains("<script"));
  page.frames(kHostile, {{kHostile, {"<svg></svg>"}, kHostile}, {"second", {}, ""}});
  const std::string text = page.str();
  CHECK(count(text, "<script>") == 1);
  CHECK(count(text, "class=\"frame\"") == 2);
  CHECK(malformed(std::regex_replace(text.substr(text.find("<html")), std::regex("<script>[^<]*</script>"), "")) == "");
}
