// The implementation of torch's fmt (nsa_torch_fmt in LibTorch.cmake), and the instantiations that its headers leave to
// the library: `extern template`, or declared alone.
#include <fmt/format-inl.h>

#include <locale>

template std::locale fmt::locale_ref::get<std::locale>() const;

namespace fmt::detail {

template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<wchar_t>;
template auto decimal_point_impl(locale_ref) -> char;
template auto decimal_point_impl(locale_ref) -> wchar_t;

template auto dragonbox::to_decimal(float) noexcept -> decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> decimal_fp<double>;

}  // namespace fmt::detail
