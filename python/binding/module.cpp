// tilewise._core: see _core.pyi.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "binding/calls.h"
#include "binding/eager.h"
#include "binding/look.h"
#include "binding/options.h"

NB_MODULE(_core, m) {
  using namespace tilewise::python;
  // None arrives like any other object, and is refused by name where it is none of the choices.
  const auto any = [](const char* name) { return nb::arg(name).none(); };
  m.def("forward", forward, any("q"), any("k"), any("v"), any("out"), any("lse"), any("out_dtype"),
        nb::arg("heads_first"), nb::arg("options"), nb::arg("openmp") = 0, nb::arg("threads") = 0,
        any("stream") = nb::none(), any("allocate") = nb::none());
  m.def("backward", backward, any("dout"), any("q"), any("k"), any("v"), any("out"), any("lse"), any("dlse"),
        nb::arg("gradients"), any("accumulate"), nb::arg("heads_first"), nb::arg("options"), nb::arg("openmp") = 0,
        nb::arg("threads") = 0, any("stream") = nb::none(), any("allocate") = nb::none());
  m.def("merge", merge, any("out_parts"), any("lse_parts"), any("out"), any("lse"), any("out_dtype"),
        nb::arg("heads_first"), any("threads"), any("stream") = nb::none());
  m.def("explain", explain, any("q"), any("k"), any("v"), any("backward"), nb::arg("heads_first"), nb::arg("options"));
  m.def("info", info);
  m.def("traffic", traffic, any("q"), any("k"), any("v"), any("backward"), nb::arg("heads_first"), any("fast_memory"),
        nb::arg("options"));
  m.def("eager", eager, any("q"), any("k"), any("v"), any("with_lse"), nb::arg("heads_first"), nb::arg("options"),
        nb::arg("openmp"), nb::arg("torch"));
  m.def("look", nb::overload_cast<const nb::tuple&, nb::handle, nb::handle>(look), nb::arg("tensors"),
        nb::arg("tensor_type"), nb::arg("parameter_type"));
  m.attr("PLAIN") = static_cast<int>(kPlain);
  m.attr("GRAD") = static_cast<int>(kGrad);
  m.attr("STRIDES") = static_cast<int>(kStrides);
  m.attr("version") = tw_version();
  add_keywords(m);
}
