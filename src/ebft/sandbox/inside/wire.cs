// Values of C# between the process with the tests and the process with the program; see wire.hpp.
// Both sides go by the types of the signature: lists, dictionaries and tuples are made anew, of exactly these.
using System;
using System.Collections;
using System.Collections.Generic;
using System.IO;

namespace EbftWire {
public class Malformed : Exception {}

public static class Wire {
    static FileStream input, output;
    public static long calls = 0;

    public static void Open(string[] arguments) {
        input = new FileStream("/proc/self/fd/" + arguments[0], FileMode.Open, FileAccess.Read);
        output = new FileStream("/proc/self/fd/" + arguments[1], FileMode.Open, FileAccess.Write);
    }

    static Type Generic(Type type) { return type.IsGenericType ? type.GetGenericTypeDefinition() : null; }
    static bool IsTuple(Type type) { return Generic(type) != null && type.FullName.StartsWith("System.Tuple`"); }

    static void Put(BinaryWriter to, Type type, object value) {
        if (!type.IsValueType || Nullable.GetUnderlyingType(type) != null) {
            to.Write(value != null);
            if (value == null) return;
            type = Nullable.GetUnderlyingType(type) ?? type;
        }
        if (type == typeof(long)) to.Write((long)value);
        else if (type == typeof(int)) to.Write((int)value);
        else if (type == typeof(float)) to.Write((float)value);
        else if (type == typeof(double)) to.Write((double)value);
        else if (type == typeof(bool)) to.Write((bool)value);
        else if (type == typeof(char)) to.Write((ushort)(char)value);
        else if (type == typeof(string)) {
            var text = (string)value;
            to.Write(text.Length);
            foreach (char c in text) to.Write((ushort)c);
        } else if (Generic(type) == typeof(List<>)) {
            var inner = type.GetGenericArguments()[0];
            var all = new ArrayList((ICollection)value);
            to.Write(all.Count);
            foreach (var one in all) Put(to, inner, one);
        } else if (Generic(type) == typeof(Dictionary<,>)) {
            var inner = type.GetGenericArguments();
            var all = (IDictionary)value;
            to.Write(all.Count);
            foreach (DictionaryEntry one in all) { Put(to, inner[0], one.Key); Put(to, inner[1], one.Value); }
        } else if (IsTuple(type)) {
            var inner = type.GetGenericArguments();
            for (int i = 0; i < inner.Length; i++) Put(to, inner[i], type.GetProperty("Item" + (i + 1)).GetValue(value, null));
        } else throw new Malformed();
    }

    static int Count(BinaryReader from) {
        int count = from.ReadInt32();
        if (count < 0 || count > from.BaseStream.Length) throw new Malformed();
        return count;
    }

    static object Get(BinaryReader from, Type type) {
        if (!type.IsValueType || Nullable.GetUnderlyingType(type) != null) {
            if (!from.ReadBoolean()) return null;
            type = Nullable.GetUnderlyingType(type) ?? type;
        }
        if (type == typeof(long)) return from.ReadInt64();
        if (type == typeof(int)) return from.ReadInt32();
        if (type == typeof(float)) return from.ReadSingle();
        if (type == typeof(double)) return from.ReadDouble();
        if (type == typeof(bool)) return from.ReadBoolean();
        if (type == typeof(char)) return (char)from.ReadUInt16();
        if (type == typeof(string)) {
            var text = new System.Text.StringBuilder();
            for (int left = Count(from); left > 0; left--) text.Append((char)from.ReadUInt16());
            return text.ToString();
        }
        if (Generic(type) == typeof(List<>)) {
            var all = (IList)Activator.CreateInstance(type);
            for (int left = Count(from); left > 0; left--) all.Add(Get(from, type.GetGenericArguments()[0]));
            return all;
        }
        if (Generic(type) == typeof(Dictionary<,>)) {
            var all = (IDictionary)Activator.CreateInstance(type);
            var inner = type.GetGenericArguments();
            for (int left = Count(from); left > 0; left--) { var key = Get(from, inner[0]); all[key] = Get(from, inner[1]); }
            return all;
        }
        if (IsTuple(type)) {
            var parts = new List<object>();
            foreach (var inner in type.GetGenericArguments()) parts.Add(Get(from, inner));
            return Activator.CreateInstance(type, parts.ToArray());
        }
        throw new Malformed();
    }

    public static void Send(Type[] types, params object[] values) {
        var body = new MemoryStream();
        var to = new BinaryWriter(body);
        for (int i = 0; i < types.Length; i++) Put(to, types[i], values[i]);
        to.Flush();
        var frame = new List<byte>(BitConverter.GetBytes((int)body.Length));
        frame.AddRange(body.ToArray());
        output.Write(frame.ToArray(), 0, frame.Count);
        output.Flush();
    }

    static byte[] Exactly(int count) {
        var data = new byte[count];
        for (int at = 0; at < count; ) {
            int got = input.Read(data, at, count - at);
            if (got <= 0) throw new Malformed();
            at += got;
        }
        return data;
    }

    public static object[] Receive(params Type[] types) {
        int count = BitConverter.ToInt32(Exactly(4), 0);
        if (count < 0 || count > 32 << 20) throw new Malformed();
        var from = new BinaryReader(new MemoryStream(Exactly(count)));
        var values = new object[types.Length];
        for (int i = 0; i < types.Length; i++) values[i] = Get(from, types[i]);
        return values;
    }

    public static object Call(Type returns, Type[] types, params object[] values) {
        calls++;
        try {
            Send(types, values);
            return Receive(returns)[0];
        } catch (Exception) {
            Report("failed", "the program has ended");
            return null;
        }
    }

    public static void Report(string status, string message) {
        var bytes = System.Text.Encoding.ASCII.GetBytes("{\"status\": \"" + status + "\", \"message\": \"" + message + "\"}");
        Console.OpenStandardOutput().Write(bytes, 0, bytes.Length);
        Environment.Exit(0);
    }
}
}
