// Reads the text of a module as NVRTC writes it.
#pragma once
#include <set>
#include <string_view>

#include "instructions.h"

typedef std::vector<std::string> Words;

inline std::string trimmed(const std::string& text) {
  size_t first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}
inline bool starts(const std::string& text, std::string_view with) { return text.rfind(with, 0) == 0; }

// The parts of a list; brackets are not split.
inline Words parts(const std::string& text, const char* separators = ",") {
  Words found;
  std::string part;
  int depth = 0;
  const auto finish = [&] {
    if (std::string word = trimmed(part); !word.empty()) found.push_back(word);
    part.clear();
  };
  for (char c : text) {
    depth += (c == '[' || c == '{' || c == '(') - (c == ']' || c == '}' || c == ')');
    if (!depth && std::strchr(separators, c))
      finish();
    else
      part += c;
  }
  finish();
  return found;
}
inline Words inside(const std::string& brackets) { return parts(brackets.substr(1, brackets.size() - 2)); }

inline size_t bytes_of(const std::string& type) {
  return std::stoul(type.substr(type.find_first_of("0123456789"))) / 8;
}

class Reader {
 public:
  Reader(const std::string& text, Module& module) : module_(module) {
    for (size_t start = 0, end; (end = text.find('\n', start)) != std::string::npos; start = end + 1)
      module_.lines.push_back(text.substr(start, end - start));
    for (const std::string& line : module_.lines) {
      ++line_;
      if (starts(trimmed(line), ".section")) break;  // debugging information, which comes last
      take(trimmed(line.substr(0, line.find("//"))));
    }
    for (auto& [at, name] : calls_) module_.code[at].target = module_.functions.at(name).start;
  }

 private:
  Module& module_;
  Function* function_ = nullptr;  // being read
  std::string pending_;           // the statement so far
  std::map<std::string, u32> names_, labels_;
  std::map<std::string, u64> parameters_;
  std::map<u64, u32> constants_;
  std::vector<std::pair<u32, std::string>> jumps_, calls_;
  std::set<std::string> used_;    // shared variables
  u32 line_ = 0, source_ = 0, threads_ = 1024;
  int depth_ = 0;

  u32 fresh(u32 count = 1) { return std::exchange(module_.registers, module_.registers + count); }
  u32 next() const { return module_.code.size(); }

  // ---- statements ----

  void take(const std::string& line) {
    Words words = parts(line, " \t");
    if (words.empty()) return;
    if (words[0] == ".loc") {
      if (words[2] != "0") source_ = std::stoul(words[2]);
    } else if (words[0] == ".maxntid") {
      threads_ = 1;
      for (const std::string& size : parts(line.substr(8))) threads_ *= std::stoul(size);
    } else if (words[0] != ".version" && words[0] != ".target" && words[0] != ".address_size" && words[0] != ".file" &&
               words[0] != ".minnctapersm") {
      for (char c : line) take(c);
      pending_ += ' ';
    }
  }

  void take(char c) {
    std::string text = trimmed(pending_);
    if (c == '{' && (text.empty() || is_header(text))) {
      if (!text.empty()) begin(text);
      ++depth_;
    } else if (c == '}' && text.empty()) {
      if (--depth_ == 0) end();
    } else if (c == ';') {
      statement(text);
    } else if (c == ':' && text[0] == '$') {
      labels_[text] = next();
    } else {
      pending_ += c;
      return;
    }
    pending_.clear();
  }

  static bool is_header(const std::string& text) {
    return text.find(".entry ") != std::string::npos || text.find(".func ") != std::string::npos;
  }

  void statement(const std::string& text) {
    if (text.empty()) return;
    if (is_header(text)) {  // a declaration
      begin(text);
      function_ = nullptr;
    } else if (text[0] == '.') {
      declare(text);
    } else {
      instruction(text);
    }
  }

  // ".entry name(parameters)" or ".func (result) name(parameters)"
  void begin(const std::string& text) {
    size_t entry = text.find(".entry ");
    bool is_entry = entry != std::string::npos;
    std::string rest = trimmed(text.substr(is_entry ? entry + 7 : text.find(".func ") + 6));
    Words returned, given;
    if (rest[0] == '(') {
      size_t close = rest.find(')') + 1;
      returned = inside(rest.substr(0, close)), rest = trimmed(rest.substr(close));
    }
    size_t open = rest.find('(');
    if (open != std::string::npos) given = inside(trimmed(rest.substr(open)));
    names_.clear(), labels_.clear(), parameters_.clear(), jumps_.clear(), used_.clear();
    std::string name = trimmed(rest.substr(0, open));
    auto [found, is_new] = module_.functions.emplace(name, Function());
    function_ = &found->second;
    if (is_new) function_->name = name, function_->back = fresh(), function_->is_entry = is_entry;
    function_->start = next(), function_->threads = std::exchange(threads_, 1024);
    if (is_entry)
      for (const std::string& each : given) declare_parameter(each);
    else
      declare_registers(function_->given, given), declare_registers(function_->returned, returned);
  }

  void end() {
    if (!function_) return;
    for (auto& [at, label] : jumps_) module_.code[at].target = labels_.at(label);
    for (const std::string& name : used_)
      function_->shared_bytes += module_.shared[name].second - module_.shared[name].first;
    function_ = nullptr;
  }

  // ---- declarations ----

  // The parameters of a function that is declared first keep their registers.
  void declare_registers(std::vector<Registers>& registers, const Words& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      Words words = parts(list[i], " \t");
      u32 count = (size_of(words) + 7) / 8;
      if (registers.size() <= i) registers.push_back({fresh(count), count});
      names_[words.back()] = registers[i].first;
    }
  }

  // The bytes of a declaration; removes the length from its name.
  static size_t size_of(Words& words) { return bytes_of(words[words.size() - 2]) * length_of(words.back()); }

  // Removes the length from a name such as "x[12]"; returns the length, or 1.
  static size_t length_of(std::string& name) {
    size_t open = name.find('[');
    if (open == std::string::npos) return 1;
    size_t length = std::stoul(name.substr(open + 1));
    name.resize(open);
    return length;
  }

  static size_t alignment_of(const Words& words) {
    auto found = std::find(words.begin(), words.end(), ".align");
    return found == words.end() ? 0 : std::stoul(found[1]);
  }

  // ".param .align 8 .b8 name[400]" or ".param .u64 name"
  void declare_parameter(const std::string& text) {
    Words words = parts(text, " \t");
    size_t item = bytes_of(words[words.size() - 2]), size = size_of(words);
    size_t alignment = std::max(alignment_of(words), item);
    size_t offset = (function_->parameter_bytes + alignment - 1) / alignment * alignment;
    function_->parameters.push_back({offset, size});
    function_->parameter_bytes = offset + size;
    parameters_[words.back()] = offset;
  }

  void declare(const std::string& text) {
    Words words = parts(text, " \t");
    if (words[0] == ".reg") {
      for (std::string each : parts(text.substr(text.find(words[1]) + words[1].size()))) {
        size_t open = each.find('<');
        if (open == std::string::npos)
          names_.emplace(each, fresh());
        else
          for (u32 i = 0, count = std::stoul(each.substr(open + 1)); i < count; ++i)
            names_[each.substr(0, open) + std::to_string(i)] = fresh();
      }
    } else if (words[0] == ".param") {  // of a call
      u32 count = (size_of(words) + 7) / 8;
      names_[words.back()] = fresh(count);
    } else if (words[0] == ".local") {
      u64 size = size_of(words);
      module_.locals[words.back()] = module_.local_end = (module_.local_end + 15) / 16 * 16;
      module_.local_end += size;
    } else if (words[0] == ".shared") {
      size_t size = size_of(words), alignment = std::max<size_t>(1, alignment_of(words));
      // Variables are separated, and aligned no better than requested.
      u64 at = (module_.shared_end + 64) / (2 * alignment) * (2 * alignment) + alignment;
      module_.shared[words.back()] = {at, at + size}, module_.shared_end = at + size;
    } else if (words[0] == ".global" && text.find('{') != std::string::npos) {  // = {1, 2, ...}, bytes
      Words named = parts(text.substr(0, text.find('=')), " \t");
      size_t size = size_of(named), item = bytes_of(named[named.size() - 2]), at = 0;
      std::vector<u8>& table = module_.tables[named.back()];
      table.resize(size);
      for (const std::string& each : inside(trimmed(text.substr(text.find('{'))))) {
        u64 number = std::stoull(each, nullptr, 0);
        std::memcpy(&table.at(item * at++), &number, item);
      }
    } else if (words[0] != ".global" && words[0] != ".pragma") {
      throw Error("a declaration that is not known: " + text);
    }
  }

  // ---- operands ----

  u32 constant(u64 number) {
    auto [found, is_new] = constants_.emplace(number, 0);
    if (is_new) module_.constants.push_back({found->second = fresh(), number});
    return found->second;
  }

  u32 operand(const std::string& text, bool is_predicate = false) {
    if (auto found = names_.find(text); found != names_.end()) return found->second;
    if (auto found = module_.shared.find(text); found != module_.shared.end())
      return used_.insert(text), constant(found->second.first);
    if (auto found = module_.tables.find(text); found != module_.tables.end())
      return constant(reinterpret_cast<u64>(found->second.data()));
    if (auto found = module_.locals.find(text); found != module_.locals.end()) return constant(found->second);
    if (auto found = parameters_.find(text); found != parameters_.end()) return constant(found->second);
    if (text[0] == '%') {
      auto [found, is_new] = module_.special.emplace(text, 0);
      if (is_new) found->second = fresh();
      return found->second;
    }
    if (starts(text, "0f") || starts(text, "0d")) return constant(std::stoull(text.substr(2), nullptr, 16));
    if (text[0] != '-' && !std::isdigit(text[0])) throw Error("a name that is not known: " + text);
    u64 number = text[0] == '-' ? u64(std::stoll(text, nullptr, 0)) : std::stoull(text, nullptr, 0);
    return constant(is_predicate && number ? ~u64(0) : number);
  }

  // The name in "[name+12]"; the number is the instruction's offset.
  static std::string address(Instruction& in, const std::string& text) {
    std::string name = text.substr(1, text.size() - 2);
    size_t plus = name.find('+');
    if (plus != std::string::npos) in.offset = std::stoll(name.substr(plus + 1)), name.resize(plus);
    return trimmed(name);
  }

  // ---- instructions ----

  void emit(Instruction in) {
    in.line = line_, in.source = source_;
    module_.code.push_back(in);
  }

  void instruction(std::string text) {
    Instruction in;
    if (text[0] == '@') {
      size_t space = text.find_first_of(" \t");
      in.negated = text[1] == '!';
      in.guard = operand(text.substr(1 + in.negated, space - 1 - in.negated));
      text = trimmed(text.substr(space));
    }
    size_t space = text.find_first_of(" \t");
    std::string name = text.substr(0, space);
    Words list = space == std::string::npos ? Words() : parts(text.substr(space));
    if (starts(name, "ld.") || starts(name, "st.")) return access(in, name, list);
    if (starts(name, "mov.b") && (list[0][0] == '{' || list[1][0] == '{')) return move_pieces(in, name, list);
    auto found = table().find(name);
    if (found == table().end()) throw Error("an instruction that is not known: " + text);
    in.run = found->second.run, in.kind = found->second.kind;
    if (in.kind == CALL) return call(in, list);
    if (in.kind == BRANCH) jumps_.push_back({next(), list.at(0)}), list.clear();
    if (in.kind == RETURN) in.operands[0] = function_->back, in.target = function_->is_entry;
    bool of_predicates = name.find(".pred") != std::string::npos;
    int count = in.kind == RETURN;
    for (const std::string& item : list) {
      Words names = item[0] == '{' ? inside(item) : item[0] == '[' ? Words{address(in, item)} : parts(item, "|");
      for (const std::string& each : names) in.operands[count++] = operand(each, of_predicates);
    }
    emit(in);
  }

  // ld.space.v2.type {a, b}, [address], or st.space.v2.type [address], {a, b}
  void access(Instruction in, const std::string& name, const Words& list) {
    Words words = parts(name, ".");
    bool loads = words[0] == "ld";
    const std::string &where = list[loads ? 1 : 0], &what = list[loads ? 0 : 1];
    std::string base = address(in, where);
    if (words[1] == "param" && names_.count(base) && base[0] != '%') {  // of a function, which is a register
      in.run = table().at("mov.b64").run;
      u32 slot = operand(base) + in.offset / 8;
      in.operands[0] = loads ? operand(what) : slot, in.operands[1] = loads ? slot : operand(what);
      return emit(in);
    }
    if (words[2] == "nc") words.erase(words.begin() + 2);  // a cache hint
    in.space = words[1] == "global"   ? GLOBAL
               : words[1] == "shared" ? SHARED
               : words[1] == "local"  ? LOCAL
                                      : PARAMETERS;
    in.size = bytes_of(words.back()), in.is_signed = words.back()[0] == 's';
    Words values = what[0] == '{' ? inside(what) : Words{what};
    in.count = values.size();
    Words known = {words[0], words[1]};
    if (in.count > 1) known.push_back("v" + std::to_string(in.count));
    known.push_back(words.back());
    bool is_read_only = in.space == PARAMETERS;
    if (words != known || (is_read_only && (!loads || words[1] != "param"))) throw Error("not known: " + name);
    int at = loads ? 0 : 1;
    for (const std::string& each : values) in.operands[at++] = operand(each);
    in.operands[loads ? at : 0] = operand(base);
    in.run = loads ? load : store;
    emit(in);
  }

  void move_pieces(Instruction in, const std::string& name, const Words& list) {
    bool splits = list[0][0] == '{';
    Words pieces = inside(list[splits ? 0 : 1]);
    in.count = pieces.size();
    int at = splits ? 0 : 1, size = 8 * bytes_of(name) / in.count;
    for (const std::string& each : pieces) in.operands[at++] = operand(each);
    in.operands[splits ? at : 0] = operand(list[splits ? 1 : 0]);
    in.run = size == 16 ? (splits ? split<16> : join<16>) : (splits ? split<32> : join<32>);
    if (size != 16 && size != 32) throw Error("not known: " + name);
    emit(in);
  }

  // call.uni (result), name, (arguments)
  void call(Instruction in, const Words& list) {
    const Function& callee = module_.functions.at(list.at(1));
    const auto move = [&](u32 to, u32 from) {
      Instruction moved = in;
      moved.kind = PLAIN, moved.run = table().at("mov.b64").run, moved.operands[0] = to, moved.operands[1] = from;
      emit(moved);
    };
    Words results = inside(list[0]), arguments = inside(list.at(2));
    for (size_t i = 0; i < arguments.size(); ++i)
      for (u32 j = 0; j < callee.given.at(i).count; ++j) move(callee.given[i].first + j, operand(arguments[i]) + j);
    in.operands[0] = callee.back;
    calls_.push_back({next(), list[1]});
    emit(in);
    for (size_t i = 0; i < results.size(); ++i)
      for (u32 j = 0; j < callee.returned.at(i).count; ++j) move(operand(results[i]) + j, callee.returned[i].first + j);
  }
};
