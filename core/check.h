// Errors: everything a user can get wrong throws one of these types with a one-line message.
// Messages read `<op or file>: <what is required>, got <every shape>`. The library never prints and never exits.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

namespace sinkgrad {

/// Base of all errors of this library: misuse of an API or a bad argument.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Shapes or dtypes that do not fit together.
struct ShapeError : Error {
  using Error::Error;
};
/// A file, recipe or command line whose content is malformed; names path and place.
struct InputError : Error {
  using Error::Error;
};
/// Reading or writing failed (missing file, full disk); names the path and the system's reason.
struct IoError : Error {
  using Error::Error;
};
/// A device that this build or this machine lacks.
struct DeviceError : Error {
  using Error::Error;
};
/// An allocation that could not be met; names the bytes asked for.
struct OutOfMemoryError : Error {
  using Error::Error;
};

/// Concatenates anything printable with `<<`.
template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

namespace detail {
template <class E, class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void fail(const Parts&... parts) {
  throw E(cat(parts...));
}
}  // namespace detail

/// Throws E with the concatenated message unless `ok`. Arguments are formatted only on failure.
template <class E = Error, class... Parts>
void require(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    detail::fail<E>(parts...);
}

}  // namespace sinkgrad
