// Values of C++ between the process with the tests and the process with the program: frames of a length and bytes.
// Both sides know the types from the signature in the prompt. What is malformed ends the side that reads it.
#pragma once
#include <bits/stdc++.h>
#include <unistd.h>

namespace ebft_wire {

inline int in = -1, out = -1;
[[noreturn]] inline void stop(const char* status, const char* message) {
    std::printf("{\"status\": \"%s\", \"message\": \"%s\"}", status, message);
    std::fflush(stdout);
    _exit(0);
}
inline void (*ended)(const char*) = nullptr;  // what to do when the other side is gone, or talks nonsense

inline void move(bool reads, char* data, size_t left) {
    while (left) {
        ssize_t done = reads ? ::read(in, data, left) : ::write(out, data, left);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) ended("the program has ended");
        data += done;
        left -= done;
    }
}

struct Writer {
    std::string data = std::string(4, 0);
    void raw(const void* from, size_t count) { data.append(static_cast<const char*>(from), count); }
    void send() {
        uint32_t count = data.size() - 4;
        std::memcpy(&data[0], &count, 4);
        move(false, &data[0], data.size());
    }
};

struct Reader {
    std::string data;
    size_t at = 0;
    Reader() {
        uint32_t count = 0;
        move(true, reinterpret_cast<char*>(&count), 4);
        if (count > (32u << 20)) ended("a malformed message");
        data.resize(count);
        move(true, &data[0], count);
    }
    void raw(void* to, size_t count) {
        if (count > data.size() - at) ended("a malformed message");
        std::memcpy(to, data.data() + at, count);
        at += count;
    }
    uint64_t count() {
        uint64_t found;
        raw(&found, 8);
        if (found > data.size()) ended("a malformed message");
        return found;
    }
};

template <class T, class = void> struct Wire;

template <class T> struct Wire<T, std::enable_if_t<std::is_arithmetic_v<T>>> {
    static void put(Writer& w, T value) { w.raw(&value, sizeof value); }
    static T get(Reader& r) {
        if constexpr (std::is_same_v<T, bool>) {
            char value;
            r.raw(&value, 1);
            return value != 0;
        } else {
            T value;
            r.raw(&value, sizeof value);
            return value;
        }
    }
};
template <> struct Wire<std::string> {
    static void put(Writer& w, const std::string& value) {
        uint64_t count = value.size();
        w.raw(&count, 8);
        w.raw(value.data(), count);
    }
    static std::string get(Reader& r) {
        std::string value(r.count(), 0);
        r.raw(&value[0], value.size());
        return value;
    }
};
template <class C, class T> struct Many {
    static void put(Writer& w, const C& all) {
        uint64_t count = all.size();
        w.raw(&count, 8);
        for (const auto& one : all) Wire<T>::put(w, one);
    }
    static C get(Reader& r) {
        C all;
        for (uint64_t left = r.count(); left; left--) all.insert(all.end(), Wire<T>::get(r));
        return all;
    }
};
template <class T> struct Wire<std::vector<T>> : Many<std::vector<T>, T> {};
template <class T> struct Wire<std::set<T>> : Many<std::set<T>, T> {};
template <class K, class V> struct Wire<std::map<K, V>> : Many<std::map<K, V>, std::pair<K, V>> {};
template <class A, class B> struct Wire<std::pair<A, B>> {
    template <class P> static void put(Writer& w, const P& value) {
        Wire<A>::put(w, value.first);
        Wire<B>::put(w, value.second);
    }
    static std::pair<A, B> get(Reader& r) {
        A first = Wire<A>::get(r);
        return {std::move(first), Wire<B>::get(r)};
    }
};
template <class... T> struct Wire<std::tuple<T...>> {
    static void put(Writer& w, const std::tuple<T...>& value) {
        std::apply([&](const T&... part) { (Wire<T>::put(w, part), ...); }, value);
    }
    static std::tuple<T...> get(Reader& r) { return std::tuple<T...>{Wire<T>::get(r)...}; }
};
template <class T> struct Wire<std::optional<T>> {
    static void put(Writer& w, const std::optional<T>& value) {
        Wire<bool>::put(w, value.has_value());
        if (value) Wire<T>::put(w, *value);
    }
    static std::optional<T> get(Reader& r) {
        if (!Wire<bool>::get(r)) return std::nullopt;
        return Wire<T>::get(r);
    }
};

inline void open(char** arguments) {
    in = std::atoi(arguments[1]);
    out = std::atoi(arguments[2]);
}

// ---- the process with the tests

inline long calls = 0;

template <class R, class... A> R call(const A&... arguments) {
    calls++;
    Writer w;
    (Wire<A>::put(w, arguments), ...);
    w.send();
    Reader r;
    return Wire<R>::get(r);
}

inline void run_tests(char** arguments, void (*tests)()) {
    open(arguments);
    std::signal(SIGPIPE, SIG_IGN);
    ended = [](const char* message) { stop("failed", message); };
    tests();
    stop(calls ? "passed" : "error", calls ? "" : "the tests never called the program");
}

// ---- the process with the program

template <class R, class... A> void serve(char** arguments, R (*function)(A...)) {
    open(arguments);
    ended = [](const char*) { _exit(1); };
    for (;;) {
        Reader r;
        std::tuple<std::decay_t<A>...> given{Wire<std::decay_t<A>>::get(r)...};
        Writer w;
        Wire<std::decay_t<R>>::put(w, std::apply(function, given));
        w.send();
    }
}

}  // namespace ebft_wire
