// The subcommands of `sinkgrad`: each add_NAME registers one, with its options and a callback that runs it.
// Callbacks report failure by exceptions; main turns them into exit codes.
#pragma once

namespace CLI {
class App;
}

namespace sinkgrad {

void add_adapt(CLI::App& app);
void add_bench(CLI::App& app);
void add_bleu(CLI::App& app);
void add_columns(CLI::App& app);
void add_convert(CLI::App& app);
void add_data(CLI::App& app);
void add_eval(CLI::App& app);
void add_gradcheck(CLI::App& app);
void add_graph(CLI::App& app);
void add_half_steps(CLI::App& app);
void add_info(CLI::App& app);
void add_inspect(CLI::App& app);
void add_plot(CLI::App& app);
void add_study(CLI::App& app);
void add_theory(CLI::App& app);
void add_train(CLI::App& app);
void add_translate(CLI::App& app);

}  // namespace sinkgrad
