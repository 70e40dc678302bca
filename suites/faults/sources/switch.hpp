// The switch of the mutated sources: every mutant stands in the program, and at most one is in force. Included by the
// copies that mutants.py writes and by who plants (source_mutants.cpp); nsa/ itself knows nothing of it. What tensors
// need besides: tensors.hpp. Every function leaves its value as it is while its mutant is not in force.
#pragma once

#include <atomic>
#include <concepts>
#include <type_traits>

namespace nsa::mutant {

inline std::atomic<int> planted{0};               // the number of the mutant in force; 0: none
inline std::atomic<void (*)()> reached{nullptr};  // called when it is computed for the first time, and often after that

inline bool on(int number) {
  if (planted.load(std::memory_order_relaxed) != number) return false;
  if (auto* const tell = reached.load(std::memory_order_relaxed)) tell();
  return true;
}

template <typename T>
concept Whole = std::integral<T> && !std::same_as<T, bool>;
template <typename T>
concept Real = std::floating_point<T>;
template <typename T>
concept Number = Whole<T> || Real<T>;

inline bool negated(int number, bool condition) { return on(number) != condition; }
inline bool keep(int number) { return !on(number); }    // a statement
inline bool dropped(int number) { return on(number); }  // a || a part of a condition

template <Whole T>
T shifted(int number, T x) {
  return on(number) ? static_cast<T>(x + 1) : x;
}
template <Number T>
T other(int number, T x) {
  if (!on(number)) return x;
  if constexpr (Whole<T>)
    return static_cast<T>(x + 1);
  else
    return x == 0 ? T(0.1) : static_cast<T>(x * T(1.1));
}
inline bool other(int number, bool x) { return negated(number, x); }
// The place beside it: 1 of 0, else one lower; from the end, one further.
template <Whole T>
T neighbour(int number, T x) {
  return on(number) ? static_cast<T>(x == 0 ? 1 : x - 1) : x;
}
template <Number T>
T without_term(int number, T x) {
  return on(number) ? T{0} : x;
}
template <Number T>
T without_factor(int number, T x) {
  return on(number) ? T{1} : x;
}
// One of two arguments that change places.
template <typename T>
const T& either(int number, const T& own, const T& others) {
  return on(number) ? others : own;
}

// `a < b` is written `a < Less(n) < b`: the operands need not be found, and keep their types.
enum class Order { less, less_equal, greater, greater_equal };
template <Order order>
struct Between {
  explicit Between(int the_number) : number(the_number) {}
  int number;
};
template <Order order, typename A>
struct Left {
  const A& a;
  int number;
};
using Less = Between<Order::less>;
using LessEqual = Between<Order::less_equal>;
using Greater = Between<Order::greater>;
using GreaterEqual = Between<Order::greater_equal>;

// As the language compares numbers of two types. A literal that was one is none here, and would be warned of.
template <typename A, typename B, typename Relation>
bool holds(const A& a, const B& b, Relation relation) {
  if constexpr (Whole<A> && Whole<B>) {
    using Common = std::common_type_t<A, B>;
    return relation(static_cast<Common>(a), static_cast<Common>(b));
  } else {
    return relation(a, b);
  }
}

#define NSA_MUTANT_COMPARISON(ORDER, SIGN, MUTATED)                                                     \
  template <typename A>                                                                                 \
  Left<Order::ORDER, A> operator SIGN(const A& a, Between<Order::ORDER> between) {                      \
    return {a, between.number};                                                                         \
  }                                                                                                     \
  template <typename A, typename B>                                                                     \
  bool operator SIGN(const Left<Order::ORDER, A>& left, const B& b) {                                   \
    return on(left.number) ? holds(left.a, b, [](const auto& x, const auto& y) { return x MUTATED y; }) \
                           : holds(left.a, b, [](const auto& x, const auto& y) { return x SIGN y; });   \
  }
NSA_MUTANT_COMPARISON(less, <, <=)
NSA_MUTANT_COMPARISON(less_equal, <=, <)
NSA_MUTANT_COMPARISON(greater, >, >=)
NSA_MUTANT_COMPARISON(greater_equal, >=, >)
#undef NSA_MUTANT_COMPARISON

}  // namespace nsa::mutant
