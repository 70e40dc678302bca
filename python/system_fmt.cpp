// The implementation of the system's fmt, of which a wheel cannot say that it is installed.
// As in setup/cmake/torch_fmt.cpp.
#include <fmt/format-inl.h>

#include <locale>

FMT_BEGIN_NAMESPACE

template std::locale detail::locale_ref::get<std::locale>() const;

namespace detail {

template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;

template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;

template void buffer<char>::append(const char*, const char*);
template void vformat_to(buffer<char>&, string_view, basic_format_args<FMT_BUFFER_CONTEXT(char)>, locale_ref);

}  // namespace detail

FMT_END_NAMESPACE
